// Random weights in any format, about as large as a model's.
#pragma once

#include <cstring>
#include <span>

#include "halflin/base/dtype.h"
#include "halflin/base/random.h"
#include "halflin/ops/encode.h"

namespace halflin {

// Fills whole blocks with weights of about `size`: bytes at random, scales chosen to that.
inline void fill_random_blocks(DType dtype, std::span<std::byte> bytes, float size,
                               Random& random) {
  const size_t block = dtype_block_bytes(dtype);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  const auto half = [&](size_t at, float value) {
    encode_row(DType::kF16, &value, 1, bytes.data() + at);
  };
  for (size_t at = 0; at < bytes.size(); at += block) {
    const float spread = size * (0.5f + static_cast<float>(random.uniform()));
    const float value = size * static_cast<float>(random.normal());
    switch (dtype) {
      case DType::kF32:
      case DType::kF16:
      case DType::kBF16:
        encode_row(dtype, &value, 1, bytes.data() + at);
        break;
      case DType::kQ8_0:
        half(at, spread / 73);
        break;
      case DType::kQ4_0:
        half(at, spread / 4);
        break;
      case DType::kQ4_1:
        half(at, spread / 4);
        half(at + 2, -2 * spread);
        break;
      case DType::kQ5_0:
        half(at, spread / 9);
        break;
      case DType::kQ5_1:
        half(at, spread / 9);
        half(at + 2, -2 * spread);
        break;
      case DType::kQ2_K:
        half(at + 80, spread / 9);
        half(at + 82, spread / 6);
        break;
      case DType::kQ3_K:
        half(at + 108, spread / 42);
        break;
      case DType::kQ4_K:
      case DType::kQ5_K:
        half(at, spread / (dtype == DType::kQ4_K ? 160 : 320));
        half(at + 2, spread / 20);
        break;
      case DType::kQ6_K:
        half(at + 208, spread / 1300);
        break;
      case DType::kU8:
        break;
    }
  }
}

}  // namespace halflin
