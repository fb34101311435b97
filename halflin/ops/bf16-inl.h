// bfloat16 rounding for Highway kernels (its own demotion truncates in some releases). Included
// once per SIMD target.
#if defined(HALFLIN_OPS_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFLIN_OPS_BF16_INL_H_
#undef HALFLIN_OPS_BF16_INL_H_
#else
#define HALFLIN_OPS_BF16_INL_H_
#endif

#include <hwy/highway.h>

#include "halflin/base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// to[i] = from[i] rounded to nearest even, finite values.
HWY_INLINE void round_row(const float* HWY_RESTRICT from, bf16* HWY_RESTRICT to, size_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du32;
  const hn::Rebind<uint16_t, decltype(d)> du16;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::BitCast(du32, hn::LoadU(d, from + i));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7fffu)));
    hn::StoreU(hn::TruncateTo(du16, hn::ShiftRight<16>(rounded)), du16,
               reinterpret_cast<uint16_t*>(to + i));
  }
  for (; i < n; ++i) to[i] = to_bf16(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#endif
