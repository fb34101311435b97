// What the tests of io/ share: a folder that goes away, the message of an error, files in the
// making.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "halflin/base/error.h"

namespace halflin {

struct TemporaryFolder {
  std::filesystem::path path;

  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "halflin-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw Error("mkdtemp failed");
    path = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  // Writes a file (and the folders above it) and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    const std::filesystem::path file = path / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << contents;
    return file;
  }
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The one-line message of the Error that `call` throws.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

// Bytes of a number, little-endian.
template <class T>
std::string raw(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// Opening any prefix of a valid file, and the file with any one byte of its head changed, must
// throw Error or succeed, and nothing else. `parse` reads the bytes from a heap block of exactly
// their size, so that a sanitizer sees any step outside.
template <class Parse>
void expect_no_crash(const std::string& valid, size_t head, Parse&& parse) {
  const auto attempt = [&](const std::string& bytes) {
    const auto block = std::make_unique<std::byte[]>(bytes.size());
    std::memcpy(block.get(), bytes.data(), bytes.size());
    try {
      parse(std::span<const std::byte>(block.get(), bytes.size()));
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  };
  for (size_t size = 0; size < valid.size(); ++size) attempt(valid.substr(0, size));
  for (size_t at = 0; at < head; ++at) {
    for (const int flip : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
      std::string changed = valid;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      attempt(changed);
    }
  }
}

}  // namespace halflin
