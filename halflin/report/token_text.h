// Tokens as text that can be shown one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace halflin {

// A text's tokens as indices into a table of pieces, each piece valid UTF-8.
struct TokenText {
  std::vector<uint32_t> piece;      // [tokens]
  std::vector<std::string> pieces;  // what is shown
  std::vector<int32_t> ids;         // [pieces] the token behind it
};

// `bytes_of` gives the bytes of an id. A character that several tokens share is shown whole at the
// first of them, and its other tokens as kContinued; bytes that belong to no character as \xNN.
inline constexpr const char* kContinued = "\u2039\u2026\u203a";  // ‹…›
TokenText token_text(std::span<const int32_t> ids,
                     const std::function<std::string(int32_t)>& bytes_of);

}  // namespace halflin
