#include "halflin/analyze/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "halflin/analyze/resample.h"

namespace halflin {

namespace {

constexpr double kNearZero = 0.01;   // nats
constexpr double kSmall = 0.05;      // nats
constexpr size_t kMostDraws = 1000;  // each visits every token
constexpr int kLorenzSteps = 20;

// Share of the harm that the worst `share` of the tokens carry; `order` falls with delta, and token
// t counts weight(t) times. The token at the cut counts in part.
template <class Weight>
double share_of_worst(std::span<const uint32_t> order, std::span<const float> delta, double share,
                      const Weight& weight) {
  double tokens = 0;
  for (const uint32_t t : order) tokens += weight(t);
  const double allowed = share * tokens;
  double seen = 0, part = 0, whole = 0;
  for (const uint32_t t : order) {
    const auto harm = std::max(0.0, static_cast<double>(delta[t]));
    if (harm <= 0) break;
    const double times = weight(t);
    part += harm * std::clamp(allowed - seen, 0.0, times);
    whole += harm * times;
    seen += times;
  }
  return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

DeltaDistribution delta_distribution(ThreadPool& pool, const BootstrapDraws& draws,
                                     std::span<const float> delta, std::span<const uint32_t> window,
                                     const IntervalOptions& options) {
  DeltaDistribution out;
  out.count = delta.size();
  if (delta.empty()) return out;
  std::vector<double> sorted(delta.begin(), delta.end());
  std::sort(sorted.begin(), sorted.end());
  const double n = static_cast<double>(sorted.size());
  for (const double v : sorted) {
    out.mean += v / n;
    (v > 0 ? out.harm : out.gain) += std::abs(v) / n;
  }
  double second = 0, third = 0, fourth = 0;
  for (const double v : sorted) {
    const double c = v - out.mean;
    second += c * c / n;
    third += c * c * c / n;
    fourth += c * c * c * c / n;
  }
  out.sd = std::sqrt(second);
  if (second > 0) {
    out.skew = third / (second * out.sd);
    out.kurtosis = fourth / (second * second) - 3;
  }
  for (const double q : kDeltaQuantiles) out.quantiles.push_back(quantile(sorted, q));

  const auto share = [&](const std::function<bool(double)>& holds) {
    std::vector<double> part(draws.windows, 0.0), whole(draws.windows, 0.0);
    for (size_t t = 0; t < delta.size(); ++t) {
      part[window[t]] += holds(static_cast<double>(delta[t])) ? 1 : 0;
      whole[window[t]] += 1;
    }
    return ratio(draws, part, whole, 1, options);
  };
  out.positive = share([](double v) { return v > 0; });
  out.near_zero = share([](double v) { return std::abs(v) < kNearZero; });
  out.small = share([](double v) { return std::abs(v) < kSmall; });

  std::vector<uint32_t> order(delta.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t l, uint32_t r) { return delta[l] > delta[r]; });
  const auto once = [](uint32_t) { return 1.0; };
  for (const double worst : kWorstShares) {
    auto values = drawn_values(pool, draws, kMostDraws, [&](auto counts) {
      return share_of_worst(order, delta, worst,
                            [&](uint32_t t) { return static_cast<double>(counts[window[t]]); });
    });
    const double estimate = share_of_worst(order, delta, worst, once);
    out.worst.push_back(percentile_interval(std::isfinite(estimate) ? estimate : 0,
                                            std::move(values), draws.windows, options.confidence));
  }
  for (int i = 0; i <= kLorenzSteps; ++i) {
    const double p = static_cast<double>(i) / kLorenzSteps;
    const double part = share_of_worst(order, delta, p, once);
    out.lorenz.emplace_back(p, std::isfinite(part) ? part : 0);
  }
  return out;
}

}  // namespace halflin
