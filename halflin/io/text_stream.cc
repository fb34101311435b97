#include "halflin/io/text_stream.h"

#include <algorithm>
#include <array>
#include <utility>

#include "halflin/base/error.h"
#include "halflin/io/printable.h"

namespace halflin {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

enum class Character { kComplete, kBegun, kInvalid };

// What the bytes at the start of `text` are, and how many of them belong together.
std::pair<Character, size_t> classify(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {Character::kComplete, 1};
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead <= 0xf4 ? 4 : 0;
  if (length == 0) return {Character::kInvalid, 1};
  // The second byte's range depends on the first: no overlong form, surrogate, or above U+10FFFF.
  const int low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const int high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Character::kBegun, i};
    const int byte = static_cast<unsigned char>(text[i]);
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xbf)) {
      return {Character::kInvalid, i};
    }
  }
  return {Character::kComplete, length};
}

// The longest end of `text` that begins `stop` and is shorter than it.
size_t begun_length(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

std::string Utf8Stream::add(std::string_view bytes) {
  const std::string all = std::exchange(begun_, {}).append(bytes);
  std::string out;
  for (size_t i = 0; i < all.size();) {
    const std::string_view rest = std::string_view(all).substr(i);
    const auto [kind, length] = classify(rest);
    if (kind == Character::kBegun) {
      begun_ = rest;
      break;
    }
    out.append(kind == Character::kComplete ? rest.substr(0, length) : kReplacement);
    i += length;
  }
  return out;
}

std::string Utf8Stream::finish() {
  if (std::exchange(begun_, {}).empty()) return {};
  return std::string(kReplacement);
}

std::string TextStream::add(int32_t id) {
  if (tokenizer_.is_special(id)) return {};
  if (!std::exchange(at_start_, false)) return utf8_.add(tokenizer_.token_bytes(id));
  return utf8_.add(tokenizer_.decode(std::array{id}));
}

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw UsageError("stop string: expected text, found one of length zero");
    if (find_invalid_utf8(stop) != std::string::npos) {
      throw UsageError(fmt::format("stop string: expected UTF-8, found {}", in_quotes(stop)));
    }
  }
}

std::string StopStrings::add(std::string_view text) {
  if (found_) return {};
  held_.append(text);
  // A match begins inside what was held back or in the new text.
  size_t first_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end > first_end || (end == first_end && stop.size() < found_->size())) continue;
    first_end = end;
    found_ = stop;
  }
  if (found_) return std::exchange(held_, {}).substr(0, first_end - found_->size());
  size_t hold = 0;
  for (const std::string& stop : stops_) hold = std::max(hold, begun_length(held_, stop));
  std::string sure = held_.substr(0, held_.size() - hold);
  held_.erase(0, sure.size());
  return sure;
}

std::string StopStrings::finish() { return found_ ? std::string() : std::exchange(held_, {}); }

}  // namespace halflin
