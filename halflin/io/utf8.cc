#include "halflin/io/utf8.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "halflin/base/error.h"

namespace halflin {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Length of the well-formed character at the start of `text`, or 0 (Unicode 15, table 3-7).
size_t well_formed_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead <= 0xf4 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies above U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  switch (form) {
    case NormalForm::kNFC:
      options |= UTF8PROC_COMPOSE;
      break;
    case NormalForm::kNFD:
      options |= UTF8PROC_DECOMPOSE;
      break;
    case NormalForm::kNFKC:
      options |= UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
      break;
    case NormalForm::kNFKD:
      options |= UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
      break;
  }
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(raw, std::free);
  if (length < 0) fail("Unicode normalisation: {}", utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(raw), static_cast<size_t>(length));
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight = 0;
    while (i + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080u) != 0) break;
      i += sizeof(eight);
    }
    if (i == text.size()) break;
    const size_t length = well_formed_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

uint32_t next_char(std::string_view text, size_t& offset) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[offset + i]));
  };
  const uint32_t lead = byte(0);
  uint32_t character = lead;
  size_t length = 1;
  if (lead >= 0xf0) {
    character =
        (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    length = 4;
  } else if (lead >= 0xe0) {
    character = (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    length = 3;
  } else if (lead >= 0x80) {
    character = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
    length = 2;
  }
  offset += length;
  return character;
}

void append_utf8(std::string& out, uint32_t character) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xc0 | character >> 6);
    put(0x80 | (character & 0x3f));
  } else if (character < 0x10000) {
    put(0xe0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3f));
    put(0x80 | (character & 0x3f));
  } else {
    put(0xf0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3f));
    put(0x80 | (character >> 6 & 0x3f));
    put(0x80 | (character & 0x3f));
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_numeric(uint32_t character) {
  if (character < 0x80) return character >= '0' && character <= '9';
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

std::string normalize_unicode(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  size_t i = 0;
  while (i < text.size()) {
    // An ASCII character normalises to itself and combines with nothing before it, only with what
    // follows: so each run of other characters, with one ASCII character before it, stands alone.
    size_t foreign = i;
    while (foreign < text.size() && is_ascii(text[foreign])) ++foreign;
    if (foreign == text.size()) {
      out.append(text.substr(i));
      break;
    }
    const size_t begin = foreign > i ? foreign - 1 : foreign;
    size_t end = foreign;
    while (end < text.size() && !is_ascii(text[end])) ++end;
    out.append(text.substr(i, begin - i));
    append_normalized(out, text.substr(begin, end - begin), form);
    i = end;
  }
  return out;
}

}  // namespace halflin
