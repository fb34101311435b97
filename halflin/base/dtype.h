// Number formats a checkpoint may use, and the conversions between the small ones.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace halflin {

// Element formats of tensors on disk. The Q* formats are ggml's block formats: each block packs 32
// (Q4_0 ... Q8_0) or 256 (Q2_K ... Q6_K) consecutive elements of a row.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kU8,  // raw bytes (masks, packed data); never converted to float32
};

// "F32", "Q4_K", ..., as safetensors and ggml spell them.
std::string_view dtype_name(DType dtype);
// Elements a block packs (1 for plain formats) and the bytes that one block takes.
size_t dtype_block_elements(DType dtype);
size_t dtype_block_bytes(DType dtype);

// The upper half of a float32.
struct bf16 {
  uint16_t bits;
};

inline float to_float(bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

// Rounds to nearest even; NaN stays NaN.
inline bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE binary16 to float32; exact.
inline float f16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals: mantissa x 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace halflin
