// UTF-8 and the little of Unicode that tokenizers need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace halflin {

// Byte offset of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

// Bytes of the character that starts with `lead`; `lead` starts a character of valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The character at `offset` of valid UTF-8; moves `offset` behind it.
uint32_t next_char(std::string_view text, size_t& offset);

void append_utf8(std::string& out, uint32_t character);

// Property White_Space.
bool is_white_space(uint32_t character);
// General categories Nd, Nl and No.
bool is_numeric(uint32_t character);

enum class NormalForm : uint8_t { kNFC, kNFD, kNFKC, kNFKD };

// `text` is valid UTF-8. Throws Error where utf8proc does (out of memory, overflow).
std::string normalize_unicode(std::string_view text, NormalForm form);

}  // namespace halflin
