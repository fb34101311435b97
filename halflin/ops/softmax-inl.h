// One row of softmax for attention, forward and backward. Included once per SIMD target.
#if defined(HALFLIN_OPS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFLIN_OPS_SOFTMAX_INL_H_
#undef HALFLIN_OPS_SOFTMAX_INL_H_
#else
#define HALFLIN_OPS_SOFTMAX_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Turns scores[0 .. n) into exp(scale * (score - max)), zeroing [n, padded); returns their sum.
// `most`, if not null, receives max.
HWY_INLINE float softmax_row(float* HWY_RESTRICT scores, size_t n, size_t padded, float scale,
                             float* most = nullptr) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  // Lanes past n hold -inf, so that whole vectors can be taken: exp gives them 0.
  for (size_t i = n; i < padded; ++i) scores[i] = -INFINITY;
  auto max = hn::Set(d, -INFINITY);
  for (size_t i = 0; i < n; i += lanes) max = hn::Max(max, hn::LoadU(d, scores + i));
  max = hn::MaxOfLanes(d, max);
  if (most != nullptr) *most = hn::GetLane(max);
  const auto v_scale = hn::Set(d, scale);
  const auto lowest = hn::Set(d, -80.f);  // exp(-80) is 0 beside the row's largest term, 1
  auto sum = hn::Zero(d);
  for (size_t i = 0; i < padded; i += lanes) {
    const auto shifted = hn::Mul(hn::Sub(hn::LoadU(d, scores + i), max), v_scale);
    const auto kept = hn::Exp(d, hn::Max(shifted, lowest));
    const auto e = hn::IfThenElseZero(hn::Gt(shifted, lowest), kept);
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#endif
