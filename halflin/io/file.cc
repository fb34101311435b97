#include "halflin/io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "halflin/base/error.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

struct Descriptor {
  int fd;
  explicit Descriptor(int fd) : fd(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Opens `.NAME.tmp` beside `path` for writing, empty and locked until it is closed, and sets
// `temporary` to its path. One that a killed process left is used again; while another writer holds
// it, this one waits. Returns the descriptor, or -1 with errno.
int open_temporary(const fs::path& path, fs::path& temporary) {
  temporary = folder_of(path) / fmt::format(".{}.tmp", path.filename().string());
  while (true) {
    // open, not mkstemp, so that the umask decides who may read the result.
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return fd;
    // A file system without locks is as good as one with a single writer.
    while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    // Whoever held the lock has renamed or removed what was opened here: then once more.
    struct stat opened = {}, named = {};
    if (::fstat(fd, &opened) == 0 && ::stat(temporary.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
      if (::ftruncate(fd, 0) == 0) return fd;
      const int reason = errno;
      ::close(fd);
      errno = reason;
      return -1;
    }
    ::close(fd);
  }
}

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("{}: cannot write: {}", path.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

// Where a link leads, so that the file it names is replaced and the link stays.
fs::path behind_links(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target;
}

}  // namespace

std::string read_file(const fs::path& path) {
  const std::string name = path.string();
  const Descriptor file(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) fail("{}: cannot open: {}", name, std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.fd, &status) != 0) fail("{}: cannot read: {}", name, std::strerror(errno));
  // A pipe has no size: grow as it comes. One byte more than a file's size finds its end at once.
  std::string contents;
  size_t used = 0;
  contents.resize(S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) + 1 : 65536);
  while (true) {
    if (used == contents.size()) contents.resize(2 * used);
    const ssize_t got = ::read(file.fd, contents.data() + used, contents.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("{}: cannot read: {}", name, std::strerror(errno));
    if (got == 0) break;
    used += static_cast<size_t>(got);
  }
  contents.resize(used);
  return contents;
}

AtomicFile::AtomicFile(const fs::path& path)
    : path_(behind_links(path)), fd_(open_temporary(path_, temporary_)) {
  if (fd_ < 0) fail("{}: cannot write: {}", path_.string(), std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  ::close(fd_);
}

void AtomicFile::write(std::span<const std::byte> bytes) { write_all(fd_, bytes, path_); }

void AtomicFile::write(std::string_view bytes) { write(std::as_bytes(std::span(bytes))); }

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("{}: cannot write: {}", path_.string(), std::strerror(errno));
  // Renamed before it is closed, while no other writer can have it.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("{}: cannot replace: {}", path_.string(), std::strerror(errno));
  }
  temporary_.clear();
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail("{}: cannot write: {}", path_.string(), std::strerror(errno));
  // The rename lasts once the folder is on disk. Some file systems cannot sync a folder; the file
  // is in place whether or not they can.
  const Descriptor folder(::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd >= 0) ::fsync(folder.fd);
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    // /dev/stdout, /dev/null, a pipe: a rename would put a file in the device's place.
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.fd < 0) fail("{}: cannot write: {}", path.string(), std::strerror(errno));
    write_all(file.fd, std::as_bytes(std::span(contents)), path);
    return;
  }
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

void ensure_writable_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("{}: cannot create the directory: {}", path.string(), error.message());
  if (!fs::is_directory(path, error)) {
    fail("{}: expected a directory, found a file", path.string());
  }
  fs::path probe;
  const Descriptor file(open_temporary(path / "probe", probe));
  if (file.fd < 0) fail("{}: cannot write there: {}", path.string(), std::strerror(errno));
  const bool written = ::write(file.fd, "x", 1) == 1;
  const int reason = errno;
  ::unlink(probe.c_str());
  if (!written) fail("{}: cannot write there: {}", path.string(), std::strerror(reason));
}

}  // namespace halflin
