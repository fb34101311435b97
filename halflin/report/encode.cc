#include "halflin/report/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace halflin {

static_assert(std::endian::native == std::endian::little, "the page's arrays are little-endian");

std::string base64(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < left ? std::to_integer<uint32_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= left ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

uint16_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00u);
  const float magnitude = std::abs(value);
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x1p-14f) {  // subnormal: a multiple of 2^-24; lrint rounds ties to even
    return static_cast<uint16_t>(sign | std::lrint(magnitude * 0x1p24f));
  }
  const uint32_t m = std::bit_cast<uint32_t>(magnitude) - (112u << 23);
  return static_cast<uint16_t>(sign | ((m + 0xfffu + (m >> 13 & 1u)) >> 13));
}

std::string f16_base64(std::span<const float> values) {
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), to_f16);
  return u16_base64(halves);
}

std::string u16_base64(std::span<const uint16_t> values) { return base64(std::as_bytes(values)); }
std::string u32_base64(std::span<const uint32_t> values) { return base64(std::as_bytes(values)); }

ScoreBytes quantise_scores(std::span<const float> scores, double threshold) {
  std::vector<float> finite;
  std::copy_if(scores.begin(), scores.end(), std::back_inserter(finite),
               [](float s) { return std::isfinite(s); });
  ScoreBytes out;
  out.bytes.assign(scores.size(), 0);
  if (finite.empty()) return out;
  const auto at = [&](double share) {
    const auto nth = finite.begin() + std::lround(share * static_cast<double>(finite.size() - 1));
    std::nth_element(finite.begin(), nth, finite.end());
    return *nth;
  };
  const float low = at(0.001);
  const float high = at(0.999);
  const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
  // A gate that lets all or no tokens through has its threshold far outside.
  out.threshold = static_cast<float>(std::clamp(threshold, *least - 1.0, *most + 1.0));
  out.lo = std::min(low, out.threshold);
  out.hi = std::max(high, out.threshold);
  const auto step = [](float part, float whole) {
    return whole > 0 ? static_cast<int>(std::min(127.0f, 128 * part / whole)) : 0;
  };
  for (size_t t = 0; t < scores.size(); ++t) {
    const float s = scores[t];
    if (!std::isfinite(s)) continue;
    const int byte = static_cast<double>(s) > threshold
                         ? 128 + step(s - out.threshold, out.hi - out.threshold)
                         : 127 - step(out.threshold - s, out.threshold - out.lo);
    out.bytes[t] = static_cast<uint8_t>(std::clamp(byte, 0, 255));
  }
  return out;
}

std::string script_json(const nlohmann::json& value) {
  const std::string plain = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  std::string out;
  out.reserve(plain.size() + plain.size() / 64);
  // JSON's own syntax has none of these characters, so each is inside a string.
  for (const char c : plain) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace halflin
