// Whole files in and out. What is written is there whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace halflin {

// Throws Error naming the path and the reason.
std::string read_file(const std::filesystem::path& path);

// Replaces `path` by `contents`: a temporary file in the same folder, fsync, rename, fsync of the
// folder. On failure (disk full included) the temporary file is removed, an old file stays as it
// was, and the Error names the path and the reason. What a killed process left of a temporary file
// goes with the next write to the same path; two that write at once write one after the other.
// Behind a link, the file it leads to is replaced; a device or a pipe is written into.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

// Creates the directory (and its parents) and proves with a probe file that files can be written
// there. For calling before long work. Throws Error naming the path and the reason.
void ensure_writable_directory(const std::filesystem::path& path);

// The same replacement for contents written piece by piece. Without commit() nothing has happened.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view bytes);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

}  // namespace halflin
