// log of the sum of exponentials, of a row that comes in parts. Included once per SIMD target.
#ifndef HALFLIN_OPS_LOG_SUM_RUNNING
#define HALFLIN_OPS_LOG_SUM_RUNNING

#include <cmath>

namespace halflin {
// sum of exp(scale * (logit - max)) over the logits seen so far.
struct RunningSum {
  float max = -INFINITY;
  double sum = 0;
};
}  // namespace halflin
#endif

#if defined(HALFLIN_OPS_LOG_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFLIN_OPS_LOG_SUM_INL_H_
#undef HALFLIN_OPS_LOG_SUM_INL_H_
#else
#define HALFLIN_OPS_LOG_SUM_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void add_row(const float* HWY_RESTRICT row, size_t n, float scale, RunningSum& running) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = n / lanes * lanes;
  auto v_max = hn::Set(d, -INFINITY);
  for (size_t i = 0; i < whole; i += lanes) v_max = hn::Max(v_max, hn::LoadU(d, row + i));
  float max = hn::GetLane(hn::MaxOfLanes(d, v_max));
  for (size_t i = whole; i < n; ++i) max = std::max(max, row[i]);
  if (max > running.max) {
    running.sum *= std::exp(static_cast<double>(scale) *
                            (static_cast<double>(running.max) - static_cast<double>(max)));
    running.max = max;
  }
  v_max = hn::Set(d, running.max);
  const auto v_scale = hn::Set(d, scale);
  const auto lowest = hn::Set(d, -80.f);
  auto v_sum = hn::Zero(d);
  for (size_t i = 0; i < whole; i += lanes) {
    const auto shifted = hn::Mul(hn::Sub(hn::LoadU(d, row + i), v_max), v_scale);
    v_sum = hn::Add(v_sum, hn::Exp(d, hn::Max(shifted, lowest)));
  }
  double sum = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, v_sum)));
  for (size_t i = whole; i < n; ++i) sum += std::exp(scale * (row[i] - running.max));
  running.sum += sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#endif
