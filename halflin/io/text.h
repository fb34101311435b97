// A text to measure on.
#pragma once

#include <filesystem>
#include <string>

namespace halflin {

struct Text {
  std::string path;
  std::string bytes;  // valid UTF-8, not empty
  std::string sha256;
};

// Throws Error naming the path when the file is missing, empty, or not UTF-8 (with the byte
// offset).
Text read_text(const std::filesystem::path& path);

}  // namespace halflin
