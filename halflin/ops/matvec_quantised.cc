// Products of int8 activations with ggml's block formats. Within a block, codes are multiplied as
// integers, four neighbours to a 32-bit lane (one instruction where the processor has VNNI); then
// the lanes are scaled and added up in float32.
#include <algorithm>
#include <cstring>

#include "halflin/base/error.h"
#include "halflin/ops/matvec_rows.h"

// Highway leaves this target out unless asked for.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/matvec_quantised.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#ifndef HALFLIN_MATVEC_CODES
#define HALFLIN_MATVEC_CODES
namespace halflin {
// MatvecInput's int8 form, and where it begins.
struct Codes {
  const int8_t* codes;
  const float* scales;
  const float* sums;
  const int32_t* minus_quads;
};
}  // namespace halflin
#endif

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

// Older than x86-64-v2, which the project asks for; its vectors of one lane hold no four codes.
void quantised_rows(const StoredMatrix&, const float*, const MatvecInput&, size_t, size_t, bool,
                    float*) {
  fail("products with quantised weights need a processor with SSSE3 or NEON");
}
void quantise(const float*, size_t, int8_t*, float*, float*, int32_t*) {}

#else
namespace hn = hwy::HWY_NAMESPACE;

// A block of 32 codes makes one vector of 8 lanes, or two of 4.
using Sums = hn::CappedTag<float, 8>;
using Ints = hn::RebindToSigned<Sums>;
using Bytes = hn::Repartition<uint8_t, Sums>;
using SignedBytes = hn::Repartition<int8_t, Sums>;
using V = hn::Vec<Sums>;
constexpr size_t kLanes = hn::MaxLanes(Sums());
constexpr size_t kVector = 4 * kLanes;  // codes of a vector
constexpr size_t kParts = 32 / kVector;

// sum + w * x, four neighbours to a lane. Without VNNI other products may share a lane; the total
// of all lanes is the same.
template <class D, class W, class X>
HWY_INLINE hn::Vec<D> dot4(D d, hn::Vec<D> sum, W w, X x) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(D()) == 8) {
    return hn::Vec<D>{_mm256_dpbusd_epi32(sum.raw, w.raw, x.raw)};
  } else {
    return hn::Vec<D>{_mm_dpbusd_epi32(sum.raw, w.raw, x.raw)};
  }
#else
  const hn::Repartition<int16_t, D> words;
  const hn::Half<hn::Repartition<uint8_t, D> > w_half;
  const hn::Half<hn::Repartition<int8_t, D> > x_half;
  auto other = hn::Zero(d);
  sum = hn::ReorderWidenMulAccumulate(d, hn::PromoteTo(words, hn::LowerHalf(w_half, w)),
                                      hn::PromoteTo(words, hn::LowerHalf(x_half, x)), sum, other);
  sum = hn::ReorderWidenMulAccumulate(d, hn::PromoteTo(words, hn::UpperHalf(w_half, w)),
                                      hn::PromoteTo(words, hn::UpperHalf(x_half, x)), sum, other);
  return hn::Add(sum, other);
#endif
}

template <class T>
HWY_INLINE T load_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// A float16 in every lane.
template <class D>
HWY_INLINE hn::Vec<D> half(D d, const std::byte* p) {
  const hn::Rebind<uint16_t, D> bits;
  const hn::Rebind<hwy::float16_t, D> halves;
  return hn::PromoteTo(d, hn::BitCast(halves, hn::Set(bits, load_as<uint16_t>(p))));
}

HWY_INLINE const uint8_t* bytes_at(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

template <int bits, class D>
HWY_INLINE hn::Vec<D> shift_right(D d, hn::Vec<D> v) {  // bits of other bytes come in: mask them
  const hn::Repartition<uint16_t, D> words;
  return hn::BitCast(d, hn::ShiftRight<bits>(hn::BitCast(words, v)));
}

// Part `part` of 32 nibbles: the low ones are the first 16 codes, the high ones the others.
HWY_INLINE hn::Vec<Bytes> nibbles(const std::byte* p, size_t part) {
  const Bytes d;
  const auto low = hn::Set(d, uint8_t{0x0f});
  if constexpr (kLanes == 8) {
    HWY_ALIGN static constexpr uint32_t kShifts[8] = {0, 0, 0, 0, 4, 4, 4, 4};
    const hn::RebindToUnsigned<Sums> words;
    const auto both = hn::BitCast(words, hn::LoadDup128(d, bytes_at(p)));
    return hn::And(hn::BitCast(d, hn::Shr(both, hn::Load(words, kShifts))), low);
  } else {
    const auto v = hn::LoadU(d, bytes_at(p));
    return hn::And(part == 0 ? v : shift_right<4>(d, v), low);
  }
}

// Memory is fetched this far ahead: the processor's own prefetching does not follow several rows at
// a time. (A core reads Q8_0 at 8 GB/s without, at 25 to 35 with it, from 4 KiB on.)
constexpr size_t kAhead = 6144;
constexpr size_t kLine = 64;

// How far from the beginning of a group of rows, which is read front to back, to the memory to
// fetch meanwhile: whole groups.
HWY_INLINE size_t ahead_of(size_t group) { return (kAhead + group - 1) / group * group; }

// Formats of 32 codes: w = scale (code - offset), or scale code + minimum.
struct Q8_0 {
  static constexpr size_t kBytes = 34;
  static constexpr int kOffsetBits = 7;  // signed codes, plus 128
  static constexpr bool kMinimum = false;
  static HWY_INLINE hn::Vec<Bytes> load(const std::byte* block, size_t part) {
    const Bytes d;
    return hn::Xor(hn::LoadU(d, bytes_at(block + 2 + part * kVector)), hn::Set(d, uint8_t{0x80}));
  }
};
struct Q4_0 {
  static constexpr size_t kBytes = 18;
  static constexpr int kOffsetBits = 3;
  static constexpr bool kMinimum = false;
  static HWY_INLINE hn::Vec<Bytes> load(const std::byte* block, size_t part) {
    return nibbles(block + 2, part);
  }
};
struct Q4_1 {
  static constexpr size_t kBytes = 20;
  static constexpr int kOffsetBits = 0;
  static constexpr bool kMinimum = true;
  static HWY_INLINE hn::Vec<Bytes> load(const std::byte* block, size_t part) {
    return nibbles(block + 4, part);
  }
};

// Products of `rows` rows, `stride` bytes apart: they share what is loaded of x.
template <class Format, size_t rows>
void dot_blocks(const std::byte* w, size_t stride, size_t n, const Codes& x, float* out) {
  const Sums d;
  const Ints ints;
  V sum[rows];
  for (size_t r = 0; r < rows; ++r) sum[r] = hn::Zero(d);
  const std::byte* ahead = w + ahead_of(rows * stride);
  for (size_t b = 0; b < n / 32; ++b) {
    for (size_t r = 0; r < rows; ++r, ahead += Format::kBytes) hwy::Prefetch(ahead);
    const auto x_scale = hn::Set(d, x.scales[b]);
    // Every lane adds its share of the minimum's term.
    const auto x_sum = hn::Set(d, x.sums[b] * (1.f / static_cast<float>(kParts * kLanes)));
    for (size_t part = 0; part < kParts; ++part) {
      const auto codes = hn::Load(SignedBytes(), x.codes + 32 * b + part * kVector);
      auto offset = hn::Zero(ints);
      if constexpr (!Format::kMinimum) {
        offset = hn::ShiftLeft<Format::kOffsetBits>(
            hn::Load(ints, x.minus_quads + 8 * b + part * kLanes));
      }
      for (size_t r = 0; r < rows; ++r) {
        const std::byte* block = w + r * stride + b * Format::kBytes;
        const auto product = hn::ConvertTo(d, dot4(ints, offset, Format::load(block, part), codes));
        if constexpr (Format::kMinimum) {
          // Scale and minimum side by side, in every pair of lanes.
          const hn::Rebind<uint16_t, Sums> bits;
          const hn::Rebind<hwy::float16_t, Sums> halves;
          const hn::Repartition<uint32_t, decltype(bits)> pairs;
          const auto both =
              hn::PromoteTo(d, hn::BitCast(halves, hn::Set(pairs, load_as<uint32_t>(block))));
          sum[r] = hn::MulAdd(product, hn::Mul(hn::DupEven(both), x_scale), sum[r]);
          sum[r] = hn::MulAdd(hn::DupOdd(both), x_sum, sum[r]);
        } else {
          sum[r] = hn::MulAdd(product, hn::Mul(half(d, block), x_scale), sum[r]);
        }
      }
    }
  }
  for (size_t r = 0; r < rows; ++r) out[r] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
}

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

template <int column, size_t rows>
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

using DotRows = void (*)(const std::byte* w, size_t stride, size_t n, const Codes& x, float* out);

template <size_t rows>
DotRows dot_rows_of(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return dot_blocks<Q4_0, rows>;
    case DType::kQ4_1:
      return dot_blocks<Q4_1, rows>;
    case DType::kQ4_K:
      return dot_q4_k<rows>;
    case DType::kQ6_K:
      return dot_q6_k<rows>;
    default:
      return dot_blocks<Q8_0, rows>;
  }
}

void quantised_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& input,
                    size_t begin, size_t end, bool accumulate, float* y) {
  constexpr size_t kRows = 4;  // the sums of a row are the same alone and among others
  const Codes x{input.codes(), input.scales(), input.sums(), input.minus_quads()};
  const size_t stride =
      weight.in / dtype_block_elements(weight.dtype) * dtype_block_bytes(weight.dtype);
  const DotRows several = dot_rows_of<kRows>(weight.dtype);
  const DotRows one = dot_rows_of<1>(weight.dtype);
  float sums[kRows];
  const std::byte* first = weight.data + begin * stride;
  const size_t bytes = std::min((end - begin) * stride, ahead_of(kRows * stride));
  for (size_t i = 0; i < bytes; i += kLine) hwy::Prefetch(first + i);
  for (size_t r = begin; r < end;) {
    const size_t rows = end - r >= kRows ? kRows : 1;
    (rows == kRows ? several : one)(weight.data + r * stride, stride, weight.in, x, sums);
    for (size_t i = 0; i < rows; ++i, ++r) {
      const float sum = bias != nullptr ? sums[i] + bias[r] : sums[i];
      y[r] = accumulate ? y[r] + sum : sum;
    }
  }
}

void quantise(const float* x, size_t n, int8_t* codes, float* scales, float* sums,
              int32_t* minus_quads) {
  const Sums d;
  const hn::Rebind<int8_t, Sums> small;
  const hn::CappedTag<int32_t, 4> group_ints;
  const hn::Repartition<uint8_t, decltype(group_ints)> group;
  const hn::Repartition<int8_t, decltype(group_ints)> signed_group;
  for (size_t b = 0; b < n / 32; ++b) {
    V largest = hn::Zero(d);
    V sum = hn::Zero(d);
    for (size_t i = 0; i < 32; i += kLanes) {
      const V v = hn::Load(d, x + 32 * b + i);
      largest = hn::Max(largest, hn::Abs(v));
      sum = hn::Add(sum, v);
    }
    const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
    const float total = hn::GetLane(hn::SumOfLanes(d, sum));
    scales[b] = most / 127.f + (total - total);  // NaN where x holds what is not finite
    // Tiny blocks, whose inverse would overflow, count as zero.
    const V inverse = hn::Set(d, most > 1e-35f ? 127.f / most : 0.f);
    for (size_t i = 0; i < 32; i += kLanes) {
      const auto code = hn::NearestInt(hn::Mul(hn::Load(d, x + 32 * b + i), inverse));
      hn::StoreU(hn::DemoteTo(small, code), small, codes + 32 * b + i);
    }
    int32_t minus = 0;
    for (size_t i = 0; i < 32; i += 16) {  // lanes of 16 codes stay among themselves: Q6_K's groups
      const auto quads = dot4(group_ints, hn::Zero(group_ints), hn::Set(group, uint8_t{1}),
                              hn::Load(signed_group, codes + 32 * b + i));
      hn::Store(hn::Neg(quads), group_ints, minus_quads + 8 * b + i / 4);
      minus -= hn::GetLane(hn::SumOfLanes(group_ints, quads));
    }
    sums[b] = scales[b] * static_cast<float>(-minus);
  }
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(quantised_rows);
HWY_EXPORT(quantise);

void matvec_quantised_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x,
                           size_t begin, size_t end, bool accumulate, float* y) {
  HWY_DYNAMIC_DISPATCH(quantised_rows)(weight, bias, x, begin, end, accumulate, y);
}

void quantise_input(const float* x, size_t n, int8_t* codes, float* scales, float* sums,
                    int32_t* minus_quads) {
  HWY_DYNAMIC_DISPATCH(quantise)(x, n, codes, scales, sums, minus_quads);
}

}  // namespace halflin
#endif
