// Products with ggml's formats of 256 codes a block: Q4_K and Q6_K. Included once per SIMD target.
#if defined(HALFLIN_OPS_MATVEC_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFLIN_OPS_MATVEC_K_INL_H_
#undef HALFLIN_OPS_MATVEC_K_INL_H_
#else
#define HALFLIN_OPS_MATVEC_K_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

#include "halflin/ops/matvec.h"
#include "halflin/ops/matvec_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR  // whose vectors of one lane hold no four codes
namespace hn = hwy::HWY_NAMESPACE;

// 256 codes in 8 groups of 32: w = d scale_g code - dmin minimum_g, scale and minimum of 6 bits.
struct Q4_K {
  static constexpr size_t kBytes = 144;
};

// Lanes begin .. begin + kLanes of 8 bytes, as float32.
HWY_INLINE V bytes_to_floats(const uint8_t* bytes) {
  const Sums d;
  const Ints ints;
  return hn::ConvertTo(d, hn::PromoteTo(ints, hn::LoadU(hn::Rebind<uint8_t, Sums>(), bytes)));
}

template <size_t rows>
void dot_q4_k(const std::byte* w, size_t stride, size_t n, const Codes& x, float* out) {
  const Sums d;
  const Ints ints;
  const Bytes bytes;
  const auto low = hn::Set(bytes, uint8_t{0x0f});
  V sum[rows];
  HWY_ALIGN float scales[rows][8];  // of the groups, times x's
  for (size_t r = 0; r < rows; ++r) sum[r] = hn::Zero(d);
  const std::byte* ahead = w + ahead_of(rows * stride);
  for (size_t b = 0; b < n / 256; ++b) {
    const std::byte* end = ahead + rows * Q4_K::kBytes;
    for (; ahead < end; ahead += kLine) hwy::Prefetch(ahead);
    ahead = end;
    for (size_t r = 0; r < rows; ++r) {
      const std::byte* block = w + r * stride + b * Q4_K::kBytes;
      const uint32_t packed[3] = {load_as<uint32_t>(block + 4), load_as<uint32_t>(block + 8),
                                  load_as<uint32_t>(block + 12)};
      const uint32_t unpacked[4] = {
          packed[0] & 0x3f3f3f3fu,
          (packed[2] & 0x0f0f0f0fu) | (packed[0] >> 2 & 0x30303030u),
          packed[1] & 0x3f3f3f3fu,
          (packed[2] >> 4 & 0x0f0f0f0fu) | (packed[1] >> 2 & 0x30303030u),
      };
      uint8_t small[16];  // 8 scales, 8 minima
      std::memcpy(small, unpacked, sizeof(small));
      const auto scale = half(d, block);
      const auto minus = hn::Neg(half(d, block + 2));
      for (size_t g = 0; g < 8; g += kLanes) {
        const auto x_scale = hn::LoadU(d, x.scales + 8 * b + g);
        hn::Store(hn::Mul(hn::Mul(bytes_to_floats(small + g), scale), x_scale), d, scales[r] + g);
        sum[r] = hn::MulAdd(hn::Mul(bytes_to_floats(small + 8 + g), minus),
                            hn::LoadU(d, x.sums + 8 * b + g), sum[r]);
      }
    }
    for (size_t pair = 0; pair < 4; ++pair) {  // two groups share 32 bytes
      for (size_t part = 0; part < kParts; ++part) {
        const int8_t* codes = x.codes + 256 * b + 64 * pair + part * kVector;
        const auto first = hn::Load(SignedBytes(), codes);
        const auto second = hn::Load(SignedBytes(), codes + 32);
        for (size_t r = 0; r < rows; ++r) {
          const auto v = hn::LoadU(
              bytes, bytes_at(w + r * stride + b * Q4_K::kBytes + 16 + 32 * pair + part * kVector));
          const auto product0 = dot4(ints, hn::Zero(ints), hn::And(v, low), first);
          const auto product1 =
              dot4(ints, hn::Zero(ints), hn::And(shift_right<4>(bytes, v), low), second);
          sum[r] = hn::MulAdd(hn::ConvertTo(d, product0), hn::Set(d, scales[r][2 * pair]), sum[r]);
          sum[r] =
              hn::MulAdd(hn::ConvertTo(d, product1), hn::Set(d, scales[r][2 * pair + 1]), sum[r]);
        }
      }
    }
  }
  for (size_t r = 0; r < rows; ++r) out[r] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
}

// 256 codes in 16 groups of 16: w = d scale_g (code - 32). Two halves of 128 codes; the four
// columns of 32 of a half lie in the nibbles of 64 bytes and two bits each of 32 others.
struct Q6_K {
  static constexpr size_t kBytes = 210;
};

template <size_t column, size_t rows>
HWY_INLINE void add_q6_column(const std::byte* w, size_t stride, size_t half_index, const float* xs,
                              const float (*scales)[16], const Codes& x, size_t begin,
                              hn::Vec<hn::CappedTag<float, 4> >* sum) {
  const hn::CappedTag<float, 4> d;
  const hn::RebindToSigned<decltype(d)> ints;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  const hn::Repartition<int8_t, decltype(d)> signed_bytes;
  for (size_t group = 0; group < 2; ++group) {
    const size_t at = begin + 128 * half_index + 32 * column + 16 * group;
    const auto codes = hn::Load(signed_bytes, x.codes + at);
    const auto offset = hn::ShiftLeft<5>(hn::Load(ints, x.minus_quads + at / 4));
    const float x_scale = xs[4 * half_index + column];
    for (size_t r = 0; r < rows; ++r) {
      const std::byte* block = w + r * stride;
      const auto nibble_bytes =
          hn::LoadU(bytes, bytes_at(block + 64 * half_index + 32 * (column % 2) + 16 * group));
      const auto upper_bytes =
          hn::LoadU(bytes, bytes_at(block + 128 + 32 * half_index + 16 * group));
      const auto low = hn::And(shift_right<4 * (column / 2)>(bytes, nibble_bytes),
                               hn::Set(bytes, uint8_t{0x0f}));
      const auto high =
          hn::And(shift_right<2 * column>(bytes, upper_bytes), hn::Set(bytes, uint8_t{0x03}));
      const hn::Repartition<uint16_t, decltype(bytes)> words;
      const auto shifted = hn::BitCast(bytes, hn::ShiftLeft<4>(hn::BitCast(words, high)));
      const auto product = dot4(ints, offset, hn::Or(low, shifted), codes);
      const float scale = scales[r][8 * half_index + 2 * column + group] * x_scale;
      sum[r] = hn::MulAdd(hn::ConvertTo(d, product), hn::Set(d, scale), sum[r]);
    }
  }
}

template <size_t rows>
void dot_q6_k(const std::byte* w, size_t stride, size_t n, const Codes& x, float* out) {
  const hn::CappedTag<float, 4> d;
  hn::Vec<decltype(d)> sum[rows];
  float scales[rows][16];
  for (size_t r = 0; r < rows; ++r) sum[r] = hn::Zero(d);
  const std::byte* ahead = w + ahead_of(rows * stride);
  for (size_t b = 0; b < n / 256; ++b) {
    const std::byte* end = ahead + rows * Q6_K::kBytes;
    for (; ahead < end; ahead += kLine) hwy::Prefetch(ahead);
    ahead = end;
    const std::byte* blocks = w + b * Q6_K::kBytes;
    for (size_t r = 0; r < rows; ++r) {
      const std::byte* block = blocks + r * stride;
      const float scale = hn::GetLane(half(d, block + 208));
      for (size_t g = 0; g < 16; ++g) {
        scales[r][g] = scale * static_cast<float>(load_as<int8_t>(block + 192 + g));
      }
    }
    for (size_t h = 0; h < 2; ++h) {
      const float* x_scales = x.scales + 8 * b;
      add_q6_column<0, rows>(blocks, stride, h, x_scales, scales, x, 256 * b, sum);
      add_q6_column<1, rows>(blocks, stride, h, x_scales, scales, x, 256 * b, sum);
      add_q6_column<2, rows>(blocks, stride, h, x_scales, scales, x, 256 * b, sum);
      add_q6_column<3, rows>(blocks, stride, h, x_scales, scales, x, 256 * b, sum);
    }
  }
  for (size_t r = 0; r < rows; ++r) out[r] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#endif
