#include "halflin/ops/adamw.h"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/adamw.cc"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

struct Element {
  V value, first, second;
};

HWY_INLINE Element update(const AdamWStep& s, V gradient, const Element& old) {
  const Floats d;
  const V g = hn::Mul(gradient, hn::Set(d, s.gradient_scale));
  const V first = hn::MulAdd(hn::Sub(g, old.first), hn::Set(d, s.first_weight), old.first);
  const V second = hn::MulAdd(hn::Mul(g, g), hn::Set(d, s.second_weight),
                              hn::Mul(old.second, hn::Set(d, s.beta2)));
  const V root =
      hn::Add(hn::Div(hn::Sqrt(second), hn::Set(d, s.root_correction)), hn::Set(d, s.epsilon));
  const V change = hn::Div(hn::Mul(first, hn::Set(d, s.step_size)), root);
  return {hn::Sub(hn::Mul(old.value, hn::Set(d, s.shrink)), change), first, second};
}

void adamw_part(const AdamWStep& s, size_t n, const float* HWY_RESTRICT gradient,
                float* HWY_RESTRICT value, float* HWY_RESTRICT first, float* HWY_RESTRICT second) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Element e =
        update(s, hn::LoadU(d, gradient + i),
               {hn::LoadU(d, value + i), hn::LoadU(d, first + i), hn::LoadU(d, second + i)});
    hn::StoreU(e.value, d, value + i);
    hn::StoreU(e.first, d, first + i);
    hn::StoreU(e.second, d, second + i);
  }
  if (i == n) return;
  HWY_ALIGN float rest[4][HWY_MAX_BYTES / sizeof(float)] = {};
  const size_t left = n - i;
  std::copy_n(gradient + i, left, rest[0]);
  std::copy_n(value + i, left, rest[1]);
  std::copy_n(first + i, left, rest[2]);
  std::copy_n(second + i, left, rest[3]);
  const Element e = update(s, hn::Load(d, rest[0]),
                           {hn::Load(d, rest[1]), hn::Load(d, rest[2]), hn::Load(d, rest[3])});
  hn::Store(e.value, d, rest[1]);
  hn::Store(e.first, d, rest[2]);
  hn::Store(e.second, d, rest[3]);
  std::copy_n(rest[1], left, value + i);
  std::copy_n(rest[2], left, first + i);
  std::copy_n(rest[3], left, second + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(adamw_part);

namespace {
constexpr size_t kPart = size_t{1} << 16;

size_t parts(size_t n) { return (n + kPart - 1) / kPart; }
}  // namespace

void adamw_update(ThreadPool& pool, const AdamWStep& step, std::span<const float> gradient,
                  std::span<float> value, std::span<float> first, std::span<float> second) {
  pool.parallel_for(parts(value.size()), [&](size_t task, int) {
    const size_t begin = task * kPart;
    HWY_DYNAMIC_DISPATCH(adamw_part)
    (step, std::min(kPart, value.size() - begin), gradient.data() + begin, value.data() + begin,
     first.data() + begin, second.data() + begin);
  });
}

double sum_of_squares(ThreadPool& pool, std::span<const float> values) {
  std::vector<double> sums(parts(values.size()));
  pool.parallel_for(sums.size(), [&](size_t task, int) {
    const std::span<const float> part =
        values.subspan(task * kPart, std::min(kPart, values.size() - task * kPart));
    double lanes[8] = {};  // several sums at a time keep the adder busy
    size_t i = 0;
    for (; i + 8 <= part.size(); i += 8) {
      for (size_t j = 0; j < 8; ++j) {
        const double v = static_cast<double>(part[i + j]);
        lanes[j] += v * v;
      }
    }
    for (; i < part.size(); ++i)
      lanes[0] += static_cast<double>(part[i]) * static_cast<double>(part[i]);
    for (const double lane : lanes) sums[task] += lane;
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace halflin
#endif
