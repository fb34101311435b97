#include "halflin/report/token_text.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "halflin/io/utf8.h"

namespace halflin {

namespace {

// Bytes of the character at the front of `bytes`, or 0 where there is none to show.
size_t character_length(std::string_view bytes) {
  const size_t length = utf8_length(bytes.front());
  if (length > bytes.size() || find_invalid_utf8(bytes.substr(0, length)) != std::string::npos) {
    return 0;
  }
  const auto byte = static_cast<unsigned char>(bytes.front());
  const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
  return control ? 0 : length;
}

}  // namespace

TokenText token_text(std::span<const int32_t> ids,
                     const std::function<std::string(int32_t)>& bytes_of) {
  std::map<int32_t, std::string> known;
  std::string bytes;
  std::vector<size_t> ends;  // [tokens] where in `bytes` each token ends
  for (const int32_t id : ids) {
    auto place = known.find(id);
    if (place == known.end()) place = known.emplace(id, bytes_of(id)).first;
    bytes += place->second;
    ends.push_back(bytes.size());
  }

  TokenText out;
  std::map<std::pair<int32_t, std::string>, uint32_t> index;
  size_t at = 0;  // the first byte not shown yet
  size_t begin = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    std::string shown;
    while (at < ends[t]) {
      const std::string_view rest = std::string_view(bytes).substr(at);
      const size_t length = character_length(rest);
      if (length == 0) {
        shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(rest.front()));
        ++at;
      } else {
        shown += rest.substr(0, length);
        at += length;
      }
    }
    if (shown.empty() && ends[t] > begin) shown = kContinued;
    begin = ends[t];
    const auto [place, added] =
        index.emplace(std::pair(ids[t], shown), static_cast<uint32_t>(out.pieces.size()));
    if (added) {
      out.pieces.push_back(shown);
      out.ids.push_back(ids[t]);
    }
    out.piece.push_back(place->second);
  }
  return out;
}

}  // namespace halflin
