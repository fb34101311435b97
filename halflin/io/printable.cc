#include "halflin/io/printable.h"

#include <fmt/format.h>

#include "halflin/io/tokenizer.h"

namespace halflin {

std::string in_quotes(std::string_view text) {
  constexpr size_t kMost = 80;
  const bool cut = text.size() > kMost;
  if (cut) {
    text = text.substr(0, kMost);
    // Not in the middle of a character: drop its continuation bytes and its lead byte.
    const size_t bad = find_invalid_utf8(text);
    if (bad != std::string_view::npos && bad + 4 > kMost) text = text.substr(0, bad);
  }
  const bool utf8 = find_invalid_utf8(text) == std::string_view::npos;
  std::string out = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !utf8)) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (cut ? "...'" : "'");
}

}  // namespace halflin
