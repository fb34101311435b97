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
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/matvec_codes-inl.h"
#include "halflin/ops/matvec_k-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

// Older than x86-64-v2, which the project asks for.
void quantised_rows(const StoredMatrix&, const float*, const MatvecInput&, size_t, size_t, bool,
                    float*) {
  fail("products with quantised weights need a processor with SSSE3 or NEON");
}
void quantise(const float*, size_t, int8_t*, float*, float*, int32_t*) {}

#else
namespace hn = hwy::HWY_NAMESPACE;

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
