// How figures and text are packed into a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halflin {

std::string base64(std::span<const std::byte> bytes);

// IEEE binary16 nearest to `value`, ties to even; beyond 65504 infinity; NaN stays NaN.
uint16_t to_f16(float value);

// The values as binary16, little-endian, base64.
std::string f16_base64(std::span<const float> values);
// The values as they are, little-endian, base64.
std::string u16_base64(std::span<const uint16_t> values);
std::string u32_base64(std::span<const uint32_t> values);

// A gate's scores in a byte each. The threshold lies between 127 and 128, so which path a token
// takes survives exactly; on either side of it the byte falls linearly to `lo` (0) or rises to `hi`
// (255), the 0.1 % and 99.9 % points of the scores, with what lies beyond clipped.
struct ScoreBytes {
  std::vector<uint8_t> bytes;  // [tokens]; 0 where the score is not finite
  float lo = 0;
  float threshold = 0;
  float hi = 0;
};
ScoreBytes quantise_scores(std::span<const float> scores, double threshold);

// JSON that can stand inside <script>: pure ASCII without <, > and &, so that no text it holds can
// end the element, open a comment or start an entity. Invalid UTF-8 becomes U+FFFD.
std::string script_json(const nlohmann::json& value);

// Text for HTML content and attribute values.
std::string escape_html(std::string_view text);

}  // namespace halflin
