// Tensors' bytes to float32. The block formats follow ggml's reference code (dequantize_row_* in
// ggml-quants.c): the same float32 operations in the same order, so the same values.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "halflin/base/error.h"
#include "halflin/io/checked.h"
#include "halflin/io/printable.h"
#include "halflin/io/tensor_file.h"

namespace halflin {
namespace {

// Converted and checked at a time: stays in the L1 cache, whole blocks of every format.
constexpr size_t kChunk = 4096;

// As f16_to_float, without branches, so that loops over it become vector code. A binary16's
// exponent and mantissa, moved to a float32's place, are 2^112 too small; the multiplication is
// exact.
inline float half_bits_to_float(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  // Infinity and NaN keep their mantissa under a full exponent.
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(scaled | special | static_cast<uint32_t>(h & 0x8000u) << 16);
}

inline float load_half(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof(h));
  return half_bits_to_float(h);
}

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Each decoder writes `blocks` blocks' elements to y.

void decode_f32(const uint8_t* x, float* y, size_t n) { std::memcpy(y, x, n * sizeof(float)); }

void decode_f16(const uint8_t* __restrict x, float* __restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = load_half(x + 2 * i);
}

void decode_bf16(const uint8_t* __restrict x, float* __restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    bf16 v;
    std::memcpy(&v, x + 2 * i, sizeof(v));
    y[i] = to_float(v);
  }
}

// 32 elements: the low nibbles are the first 16, the high nibbles the others.

void decode_q4_0(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 18, y += 32) {
    const float d = load_half(x);
    for (int j = 0; j < 16; ++j) {
      y[j] = static_cast<float>((x[2 + j] & 0x0f) - 8) * d;
      y[j + 16] = static_cast<float>((x[2 + j] >> 4) - 8) * d;
    }
  }
}

void decode_q4_1(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 20, y += 32) {
    const float d = load_half(x);
    const float m = load_half(x + 2);
    for (int j = 0; j < 16; ++j) {
      y[j] = static_cast<float>(x[4 + j] & 0x0f) * d + m;
      y[j + 16] = static_cast<float>(x[4 + j] >> 4) * d + m;
    }
  }
}

// The fifth bit of element j is bit j of a 32-bit word.

void decode_q5_0(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 22, y += 32) {
    const float d = load_half(x);
    const uint32_t fifth = load_u32(x + 2);
    for (uint32_t j = 0; j < 16; ++j) {
      const uint32_t low = (x[6 + j] & 0x0fu) | ((fifth >> j & 1u) << 4);
      const uint32_t high = (x[6 + j] >> 4) | ((fifth >> (j + 16) & 1u) << 4);
      y[j] = static_cast<float>(static_cast<int>(low) - 16) * d;
      y[j + 16] = static_cast<float>(static_cast<int>(high) - 16) * d;
    }
  }
}

void decode_q5_1(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 24, y += 32) {
    const float d = load_half(x);
    const float m = load_half(x + 2);
    const uint32_t fifth = load_u32(x + 4);
    for (uint32_t j = 0; j < 16; ++j) {
      const uint32_t low = (x[8 + j] & 0x0fu) | ((fifth >> j & 1u) << 4);
      const uint32_t high = (x[8 + j] >> 4) | ((fifth >> (j + 16) & 1u) << 4);
      y[j] = static_cast<float>(static_cast<int>(low)) * d + m;
      y[j + 16] = static_cast<float>(static_cast<int>(high)) * d + m;
    }
  }
}

void decode_q8_0(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 34, y += 32) {
    const float d = load_half(x);
    for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(static_cast<int8_t>(x[2 + j])) * d;
  }
}

// 256 elements, in groups of 16 or 32 with a small integer scale (and minimum) each, in units of
// the block's float scales. Two halves of 128; the bits of one byte belong to elements 32 (2-bit
// parts) or 32/64 (nibbles) apart.

void decode_q2_k(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 84) {
    const uint8_t* scales = x;
    const uint8_t* q = x + 16;
    const float d = load_half(x + 80);
    const float dmin = load_half(x + 82);
    for (int half = 0; half < 2; ++half, q += 32) {
      for (int shift = 0; shift < 8; shift += 2) {
        for (int group = 0; group < 2; ++group, ++scales, y += 16) {
          const float scale = d * static_cast<float>(*scales & 0x0f);
          const float minimum = dmin * static_cast<float>(*scales >> 4);
          for (int l = 0; l < 16; ++l) {
            y[l] = scale * static_cast<float>((q[16 * group + l] >> shift) & 3) - minimum;
          }
        }
      }
    }
  }
}

void decode_q3_k(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 110) {
    const uint8_t* third = x;  // bit b of byte i: element 32 b + i; set where 4 is not subtracted
    const uint8_t* q = x + 32;
    const uint8_t* packed = x + 96;
    const float d = load_half(x + 108);
    // 16 scales of 6 bits: low nibbles in bytes 0-7 (first 8 scales low, others high), upper 2 bits
    // in bytes 8-11, byte i holding those of scales i, i + 4, i + 8, i + 12.
    int scales[16];
    for (int i = 0; i < 16; ++i) {
      const int low = i < 8 ? packed[i] & 0x0f : packed[i - 8] >> 4;
      const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
      scales[i] = (low | high << 4) - 32;
    }
    int next = 0;
    for (int part = 0; part < 8; ++part) {  // 32 elements each
      if (part == 4) q += 32;
      for (int group = 0; group < 2; ++group, y += 16) {
        const float scale = d * static_cast<float>(scales[next++]);
        for (int l = 0; l < 16; ++l) {
          const int i = 16 * group + l;
          const int low = (q[i] >> (2 * (part % 4))) & 3;
          const int value = low - 4 + ((third[i] >> part & 1) << 2);
          y[l] = scale * static_cast<float>(value);
        }
      }
    }
  }
}

// The 6-bit scale and minimum of group j (0..7) in the 12 bytes of Q4_K and Q5_K.
inline void scale_and_minimum(int j, const uint8_t* packed, int& scale, int& minimum) {
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 0x0f) | (packed[j - 4] >> 6) << 4;
    minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
  }
}

void decode_q4_k(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 144) {
    const float d = load_half(x);
    const float dmin = load_half(x + 2);
    const uint8_t* q = x + 16;
    for (int group = 0; group < 8; group += 2, q += 32) {
      for (int nibble = 0; nibble < 2; ++nibble, y += 32) {
        int scale_6bit = 0;
        int minimum_6bit = 0;
        scale_and_minimum(group + nibble, x + 4, scale_6bit, minimum_6bit);
        const float scale = d * static_cast<float>(scale_6bit);
        const float minimum = dmin * static_cast<float>(minimum_6bit);
        for (int l = 0; l < 32; ++l) {
          y[l] = scale * static_cast<float>((q[l] >> (4 * nibble)) & 0x0f) - minimum;
        }
      }
    }
  }
}

void decode_q5_k(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 176) {
    const float d = load_half(x);
    const float dmin = load_half(x + 2);
    const uint8_t* fifth = x + 16;  // bit g of byte l: element l of group g
    const uint8_t* q = x + 48;
    for (int group = 0; group < 8; group += 2, q += 32) {
      for (int nibble = 0; nibble < 2; ++nibble, y += 32) {
        int scale_6bit = 0;
        int minimum_6bit = 0;
        scale_and_minimum(group + nibble, x + 4, scale_6bit, minimum_6bit);
        const float scale = d * static_cast<float>(scale_6bit);
        const float minimum = dmin * static_cast<float>(minimum_6bit);
        for (int l = 0; l < 32; ++l) {
          const int high = (fifth[l] >> (group + nibble) & 1) << 4;
          y[l] = scale * static_cast<float>(((q[l] >> (4 * nibble)) & 0x0f) + high) - minimum;
        }
      }
    }
  }
}

void decode_q6_k(const uint8_t* __restrict x, float* __restrict y, size_t blocks) {
  for (; blocks > 0; --blocks, x += 210) {
    const float d = load_half(x + 208);
    for (size_t part = 0; part < 8; ++part) {  // 32 elements each: half, nibble, column of 32
      const size_t half = part / 4;
      const uint8_t* low = x + 64 * half + 32 * (part % 2);
      const uint8_t* high = x + 128 + 32 * half;
      const uint8_t* scales = x + 192 + 2 * part;
      const size_t low_shift = 4 * (part % 4 / 2);
      const size_t high_shift = 2 * (part % 4);
      for (int group = 0; group < 2; ++group, y += 16) {
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[group]));
        for (int l = 0; l < 16; ++l) {
          const int i = 16 * group + l;
          const int value = ((low[i] >> low_shift) & 0x0f) | ((high[i] >> high_shift) & 3) << 4;
          y[l] = scale * static_cast<float>(value - 32);
        }
      }
    }
  }
}

using Decode = void (*)(const uint8_t* x, float* y, size_t blocks);

Decode decoder_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return decode_f32;
    case DType::kF16:
      return decode_f16;
    case DType::kBF16:
      return decode_bf16;
    case DType::kQ4_0:
      return decode_q4_0;
    case DType::kQ4_1:
      return decode_q4_1;
    case DType::kQ5_0:
      return decode_q5_0;
    case DType::kQ5_1:
      return decode_q5_1;
    case DType::kQ8_0:
      return decode_q8_0;
    case DType::kQ2_K:
      return decode_q2_k;
    case DType::kQ3_K:
      return decode_q3_k;
    case DType::kQ4_K:
      return decode_q4_k;
    case DType::kQ5_K:
      return decode_q5_k;
    case DType::kQ6_K:
      return decode_q6_k;
    case DType::kU8:
      break;
  }
  return nullptr;
}

bool is_finite(float v) { return (std::bit_cast<uint32_t>(v) & 0x7f800000u) != 0x7f800000u; }

bool all_finite(std::span<const float> values) {
  uint32_t bad = 0;
  for (const float v : values) bad |= is_finite(v) ? 0u : 1u;
  return bad == 0;
}

// "12 ([1, 2])": the element's number and where it lies in the shape.
std::string element_text(size_t element, std::span<const size_t> shape) {
  std::vector<size_t> index(shape.size());
  size_t rest = element;
  for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
  return fmt::format("{} ({})", element, shape_text(index));
}

}  // namespace

void read_f32(const TensorInfo& tensor, size_t begin, std::span<float> out) {
  const size_t block_elements = dtype_block_elements(tensor.dtype);
  const size_t block_bytes = dtype_block_bytes(tensor.dtype);
  const auto place = [&] {
    return fmt::format("{}: tensor {}", tensor.file, in_quotes(tensor.name));
  };
  const Decode decode = decoder_of(tensor.dtype);
  if (decode == nullptr) {
    fail("{}: expected weights, found the format {}", place(), dtype_name(tensor.dtype));
  }
  const size_t elements = tensor.bytes.size() / block_bytes * block_elements;
  if (begin % block_elements != 0 || out.size() % block_elements != 0 || begin > elements ||
      out.size() > elements - begin) {
    fail("{}: expected whole blocks of {} within {} elements, found {} from {}", place(),
         block_elements, elements, out.size(), begin);
  }

  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.bytes.data());
  for (size_t done = 0; done < out.size(); done += kChunk) {
    const auto chunk = out.subspan(done, std::min(kChunk, out.size() - done));
    decode(bytes + (begin + done) / block_elements * block_bytes, chunk.data(),
           chunk.size() / block_elements);
    if (all_finite(chunk)) continue;
    const auto bad = std::find_if_not(chunk.begin(), chunk.end(), is_finite);
    const size_t element = begin + done + static_cast<size_t>(bad - chunk.begin());
    fail("{}: element {}: expected a finite number, found {}", place(),
         element_text(element, tensor.shape), *bad);
  }
}

}  // namespace halflin
