#include "halflin/ops/machine.h"

#include <algorithm>
#include <chrono>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/machine.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float sum_of(const float* data, size_t n) {  // n a multiple of 64
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  for (size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::Add(sum0, hn::Load(d, data + i));
    sum1 = hn::Add(sum1, hn::Load(d, data + i + lanes));
    sum2 = hn::Add(sum2, hn::Load(d, data + i + 2 * lanes));
    sum3 = hn::Add(sum3, hn::Load(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(sum_of);

namespace {

constexpr size_t kRows = 512;
constexpr size_t kWidth = 2048;

template <class Run>
double seconds_of(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

ReadProbe::ReadProbe(size_t bytes) : memory_(bytes / 4096, 1024) {
  std::fill(memory_.span().begin(), memory_.span().end(), 1.f);
}

double ReadProbe::run(ThreadPool& pool) {
  const auto parts = static_cast<size_t>(pool.size());
  std::vector<float> sums(parts);
  const double seconds = seconds_of([&] {
    pool.parallel_for(parts, [&](size_t part, int) {
      const size_t begin = memory_.rows() * part / parts;
      const size_t end = memory_.rows() * (part + 1) / parts;
      sums[part] = HWY_DYNAMIC_DISPATCH(sum_of)(memory_.row(begin), (end - begin) * memory_.cols());
    });
  });
  for (const float sum : sums) sink_ += sum;
  return static_cast<double>(memory_.size() * sizeof(float)) / seconds;
}

ProductProbe::ProductProbe(Precision precision)
    : linear_(Matrix<float>(kWidth, kWidth).view(), false, {}, precision),
      x_(precision, kRows, kWidth),
      y_(kRows, kWidth) {}

double ProductProbe::run(ThreadPool& pool) {
  const double seconds =
      seconds_of([&] { linear_.forward(pool, x_.view(kRows, kWidth), y_.view()); });
  return 2.0 * static_cast<double>(kRows * kWidth * kWidth) / seconds;
}

}  // namespace halflin
#endif
