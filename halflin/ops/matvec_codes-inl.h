// What products with ggml's block formats share. Included once per SIMD target.
#if defined(HALFLIN_OPS_MATVEC_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFLIN_OPS_MATVEC_CODES_INL_H_
#undef HALFLIN_OPS_MATVEC_CODES_INL_H_
#else
#define HALFLIN_OPS_MATVEC_CODES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

#include "halflin/ops/matvec.h"

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
#if HWY_TARGET != HWY_SCALAR  // whose vectors of one lane hold no four codes
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

// Memory is fetched this far ahead: the processor's own prefetching does not follow several rows at
// a time. (A core reads Q8_0 at 8 GB/s without, at 25 to 35 with it, from 4 KiB on.)
constexpr size_t kAhead = 6144;
constexpr size_t kLine = 64;

// How far from the beginning of a group of rows, which is read front to back, to the memory to
// fetch meanwhile: whole groups.
HWY_INLINE size_t ahead_of(size_t group) { return (kAhead + group - 1) / group * group; }

#endif
}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#endif
