// SHA-256, the names of files' contents in results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace halflin {

// Takes the bytes piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits. To be called once, last.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace halflin
