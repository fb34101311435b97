// A text to measure on.
#pragma once

#include <filesystem>
#include <string>

namespace halflin {

struct Text {
  std::string path;
  std::string bytes;   // valid UTF-8, not empty, line ends as with_plain_newlines leaves them
  std::string sha256;  // of the file as it is
};

// "\r\n" and lone "\r" become "\n", as Python's text files read: figures for a text must not depend
// on the system it was saved on.
std::string with_plain_newlines(std::string text);

// Throws Error naming the path when the file is missing, empty, or not UTF-8 (with the byte
// offset).
Text read_text(const std::filesystem::path& path);

}  // namespace halflin
