#include "halflin/ops/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "halflin/base/error.h"

namespace halflin {

namespace {

constexpr size_t kBlock = 32;

// To nearest even; beyond float16's range, infinity.
uint16_t to_f16(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above
  if (magnitude < 0x38800000u) {                        // below 2^-14: multiples of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return sign | static_cast<uint16_t>(std::nearbyint(scaled));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

void encode_q8_0(const float* x, std::byte* out) {
  float most = 0;
  for (size_t i = 0; i < kBlock; ++i) most = std::max(most, std::abs(x[i]));
  const float step = most / 127.f;
  const float inverse = step != 0 ? 1.f / step : 0.f;
  put(out, to_f16(step));
  for (size_t i = 0; i < kBlock; ++i) {
    put(out + 2 + i, static_cast<int8_t>(std::round(x[i] * inverse)));
  }
}

// Two codes a byte: the first half of the block in the low nibbles.
template <class Code>
void put_nibbles(const float* x, const Code& code, std::byte* out) {
  for (size_t i = 0; i < kBlock / 2; ++i) {
    put(out + i, static_cast<uint8_t>(code(x[i]) | code(x[i + kBlock / 2]) << 4));
  }
}

void encode_q4_0(const float* x, std::byte* out) {
  float most = 0;  // the element of largest magnitude becomes code 0, which stands for -8 steps
  for (size_t i = 0; i < kBlock; ++i) {
    if (std::abs(x[i]) > std::abs(most)) most = x[i];
  }
  const float step = most / -8.f;
  const float inverse = step != 0 ? 1.f / step : 0.f;
  put(out, to_f16(step));
  put_nibbles(
      x, [&](float v) { return std::min(15, static_cast<int>(v * inverse + 8.5f)); }, out + 2);
}

void encode_q4_1(const float* x, std::byte* out) {
  const auto [lowest, highest] = std::minmax_element(x, x + kBlock);
  const float low = *lowest;
  const float step = (*highest - low) / 15.f;
  const float inverse = step != 0 ? 1.f / step : 0.f;
  put(out, to_f16(step));
  put(out + 2, to_f16(low));
  const auto code = [&](float v) {  // NOLINTNEXTLINE(bugprone-incorrect-roundings): as llama.cpp's
    return std::min(15, static_cast<int>((v - low) * inverse + 0.5f));
  };
  put_nibbles(x, code, out + 4);
}

}  // namespace

bool has_encoder(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
      return true;
    default:
      return false;
  }
}

void encode_row(DType dtype, const float* row, size_t n, std::byte* out) {
  const size_t elements = dtype_block_elements(dtype);
  if (!has_encoder(dtype) || n % elements != 0) {
    fail("{} weights cannot be written as {}", n, dtype_name(dtype));
  }
  const size_t bytes = dtype_block_bytes(dtype);
  for (size_t i = 0; i < n; i += elements, out += bytes) {
    switch (dtype) {
      case DType::kF16:
        put(out, to_f16(row[i]));
        break;
      case DType::kBF16:
        put(out, to_bf16(row[i]));
        break;
      case DType::kQ8_0:
        encode_q8_0(row + i, out);
        break;
      case DType::kQ4_0:
        encode_q4_0(row + i, out);
        break;
      case DType::kQ4_1:
        encode_q4_1(row + i, out);
        break;
      default:
        put(out, row[i]);
    }
  }
}

}  // namespace halflin
