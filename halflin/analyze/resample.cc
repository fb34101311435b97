#include "halflin/analyze/resample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace halflin {

namespace {

// Pairs that a positive of window i wins against a negative of window j, and both classes' counts.
struct Wins {
  Matrix<double> won;
  std::vector<double> positives, negatives;

  double auc(std::span<const uint16_t> counts) const {
    double p = 0, n = 0, pairs = 0;
    for (size_t i = 0; i < positives.size(); ++i) {
      p += counts[i] * positives[i];
      n += counts[i] * negatives[i];
      if (counts[i] == 0) continue;
      double row = 0;
      for (size_t j = 0; j < positives.size(); ++j) row += counts[j] * won(i, j);
      pairs += counts[i] * row;
    }
    return p > 0 && n > 0 ? pairs / (p * n) : std::numeric_limits<double>::quiet_NaN();
  }
};

Wins count_wins(std::span<const float> scores, std::span<const int8_t> labels,
                std::span<const uint32_t> window, size_t windows) {
  Wins wins{Matrix<double>(windows, windows), std::vector<double>(windows),
            std::vector<double>(windows)};
  std::vector<uint32_t> order;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (labels[t] >= 0 && !std::isnan(scores[t])) order.push_back(static_cast<uint32_t>(t));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t l, uint32_t r) { return scores[l] < scores[r]; });
  std::vector<double> tied(windows, 0.0);
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    while (last < order.size() && scores[order[last]] == scores[order[first]]) ++last;
    std::fill(tied.begin(), tied.end(), 0.0);
    for (size_t i = first; i < last; ++i) {
      if (labels[order[i]] == 0) tied[window[order[i]]] += 0.5;
    }
    for (size_t i = first; i < last; ++i) {
      if (labels[order[i]] == 0) continue;
      const size_t w = window[order[i]];
      wins.positives[w] += 1;
      for (size_t j = 0; j < windows; ++j) wins.won(w, j) += wins.negatives[j] + tied[j];
    }
    for (size_t i = first; i < last; ++i) {
      if (labels[order[i]] == 0) wins.negatives[window[order[i]]] += 1;
    }
    first = last;
  }
  return wins;
}

double deviation(std::span<const double> values) {
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / n);
}

}  // namespace

double quantile(std::span<const double> sorted, double q) {
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (position - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

std::vector<double> drawn_values(
    ThreadPool& pool, const BootstrapDraws& draws, size_t most,
    const std::function<double(std::span<const uint16_t> counts)>& statistic) {
  std::vector<double> values(std::min(most, draws.counts.rows()));
  pool.parallel_for(values.size(), [&](size_t r, int) {
    values[r] = statistic({draws.counts.row(r), draws.windows});
  });
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  return values;
}

Interval percentile_interval(double estimate, std::vector<double> values, size_t windows,
                             double confidence) {
  Interval out;
  out.estimate = out.lo = out.hi = estimate;
  out.windows = windows;
  out.too_few = windows < kFewestWindows || values.empty();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.lo = quantile(values, 0.5 * (1 - confidence));
  out.hi = quantile(values, 0.5 * (1 + confidence));
  return out;
}

Interval fisher_interval(double estimate, std::span<const double> values, size_t windows,
                         double confidence) {
  Interval out;
  out.estimate = out.lo = out.hi = estimate;
  out.windows = windows;
  out.too_few = windows < kFewestWindows || values.size() < 2;
  if (values.size() < 2) return out;
  static constexpr double kNearOne = 1 - 1e-9;
  const auto z = [](double r) { return std::atanh(std::clamp(r, -kNearOne, kNearOne)); };
  std::vector<double> transformed;
  for (const double v : values) transformed.push_back(z(v));
  const double reach = normal_quantile(0.5 * (1 + confidence)) * deviation(transformed);
  out.lo = std::tanh(z(estimate) - reach);
  out.hi = std::tanh(z(estimate) + reach);
  return out;
}

double pearson(std::span<const double> a, std::span<const double> b) {
  const double n = static_cast<double>(a.size());
  if (a.empty()) return 0;
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
    ab += (a[i] - mean_a) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

Interval pearson_interval(ThreadPool& pool, const BootstrapDraws& draws, std::span<const float> a,
                          std::span<const float> b, std::span<const uint32_t> window,
                          double confidence) {
  // Sums of each window about the overall means, so that large means cost no digits.
  const std::vector<double> da(a.begin(), a.end()), db(b.begin(), b.end());
  const double n = static_cast<double>(std::max<size_t>(a.size(), 1));
  const double mean_a = std::accumulate(da.begin(), da.end(), 0.0) / n;
  const double mean_b = std::accumulate(db.begin(), db.end(), 0.0) / n;
  Matrix<double> sums(draws.windows, 6);
  for (size_t t = 0; t < a.size(); ++t) {
    const double u = da[t] - mean_a, v = db[t] - mean_b;
    double* s = sums.row(window[t]);
    s[0] += 1, s[1] += u, s[2] += v, s[3] += u * u, s[4] += v * v, s[5] += u * v;
  }
  auto values = drawn_values(pool, draws, draws.counts.rows(), [&](auto counts) {
    double s[6] = {};
    for (size_t w = 0; w < counts.size(); ++w) {
      for (size_t k = 0; k < 6; ++k) s[k] += counts[w] * sums(w, k);
    }
    const double uu = s[3] - s[1] * s[1] / s[0];
    const double vv = s[4] - s[2] * s[2] / s[0];
    return uu > 0 && vv > 0 ? (s[5] - s[1] * s[2] / s[0]) / std::sqrt(uu * vv)
                            : std::numeric_limits<double>::quiet_NaN();
  });
  return percentile_interval(pearson(da, db), std::move(values), draws.windows, confidence);
}

Interval auc_difference(ThreadPool& pool, const BootstrapDraws& draws, std::span<const float> a,
                        std::span<const float> b, std::span<const int8_t> labels,
                        std::span<const uint32_t> window, double confidence) {
  // Many short windows are joined into runs of neighbours, as auc_interval does.
  constexpr size_t kMostBlocks = 256;
  if (draws.windows > kMostBlocks) {
    std::vector<uint32_t> block(window.size());
    for (size_t t = 0; t < window.size(); ++t) {
      block[t] = static_cast<uint32_t>(window[t] * kMostBlocks / draws.windows);
    }
    return auc_difference(pool, draw_windows(kMostBlocks, draws.counts.rows(), draws.seed), a, b,
                          labels, block, confidence);
  }
  const Wins wins_a = count_wins(a, labels, window, draws.windows);
  const Wins wins_b = count_wins(b, labels, window, draws.windows);
  auto values = drawn_values(pool, draws, draws.counts.rows(),
                             [&](auto counts) { return wins_a.auc(counts) - wins_b.auc(counts); });
  return percentile_interval(auc(a, labels) - auc(b, labels), std::move(values), draws.windows,
                             confidence);
}

nlohmann::json figure(const Interval& interval) {
  nlohmann::json out = {
      {"value", interval.estimate}, {"ci_lo", interval.lo}, {"ci_hi", interval.hi}};
  if (interval.too_few) out["too_few"] = interval.windows;
  return out;
}

}  // namespace halflin
