#include "halflin/analyze/explained.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/mlp/least_squares.h"
#include "halflin/ops/linear.h"

namespace halflin {

namespace {

constexpr double kValidation = 0.2;  // share of the windows that choose the penalty

double mean_of(std::span<const double> y) {
  return std::accumulate(y.begin(), y.end(), 0.0) / static_cast<double>(y.size());
}

Moments moments_of(ThreadPool& pool, MatView<const float> x, std::span<const double> y) {
  // float32 targets are enough: delta is a difference of float32 losses.
  Matrix<float> target(x.rows, 1);
  for (size_t t = 0; t < x.rows; ++t) target(t, 0) = static_cast<float>(y[t]);
  Moments moments(x.cols, 1);
  moments.add(pool, x, target.view());
  return moments;
}

RidgeFit solve(ThreadPool& pool, const Moments& moments, const Standardized& standard,
               double penalty) {
  const size_t k = standard.mean.size();
  RidgeFit fit;
  fit.penalty = penalty;
  fit.bias = moments.mean_y[0];
  fit.weight.assign(k, 0.0);
  if (std::isinf(penalty)) return fit;
  const SpdFactor factor =
      factor_spd(standard.gram.view(), penalty * static_cast<double>(moments.n));
  std::vector<double> w(k);
  for (size_t j = 0; j < k; ++j) w[j] = moments.xy(j, 0) / standard.scale[j];
  solve_in_place(pool, factor, {w.data(), k, 1});
  for (size_t j = 0; j < k; ++j) {
    fit.weight[j] = w[j] / standard.scale[j];
    fit.bias -= fit.weight[j] * standard.mean[j];
  }
  return fit;
}

}  // namespace

double GroupMeans::predict(int32_t group) const {
  const auto found = effect.find(group);
  return mean + (found == effect.end() ? 0 : found->second);
}

GroupMeans fit_group_means(std::span<const int32_t> group, std::span<const double> y) {
  if (group.size() != y.size() || y.empty()) {
    fail("group means: {} groups for {} values", group.size(), y.size());
  }
  struct Sums {
    double n = 0, sum = 0;
  };
  GroupMeans out;
  out.mean = mean_of(y);
  std::unordered_map<int32_t, Sums> sums;
  for (size_t t = 0; t < y.size(); ++t) {
    Sums& s = sums[group[t]];
    s.n += 1;
    s.sum += y[t] - out.mean;
  }
  // Sums over groups in order of their id, whatever the map's order: same bits everywhere.
  std::vector<std::pair<int32_t, Sums>> ordered(sums.begin(), sums.end());
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& l, const auto& r) { return l.first < r.first; });
  double total = 0, between = 0, n_squares = 0;
  for (const double v : y) total += (v - out.mean) * (v - out.mean);
  for (const auto& [id, s] : ordered) {
    between += s.sum * s.sum / s.n;
    n_squares += s.n * s.n;
  }
  const double n = static_cast<double>(y.size());
  const double groups = static_cast<double>(ordered.size());
  if (groups < 2 || groups >= n) return out;  // nothing to compare, or nothing inside groups
  out.within = std::max(0.0, total - between) / (n - groups);
  const double mean_square = between / (groups - 1);
  const double size = (n - n_squares / n) / (groups - 1);
  out.between = std::max(0.0, (mean_square - out.within) / size);
  if (out.between <= 0) return out;
  const double k = out.within / out.between;
  for (const auto& [id, s] : ordered) out.effect[id] = s.sum / (s.n + k);
  return out;
}

double RidgeFit::predict(std::span<const float> row) const {
  double sum = bias;
  for (size_t j = 0; j < row.size(); ++j) sum += weight[j] * static_cast<double>(row[j]);
  return sum;
}

RidgeFit fit_ridge(ThreadPool& pool, MatView<const float> x, std::span<const double> y,
                   std::span<const uint32_t> window) {
  if (x.rows == 0 || y.size() != x.rows || window.size() != x.rows) {
    fail("ridge: {} rows, {} values, {} window numbers", x.rows, y.size(), window.size());
  }
  const uint32_t first = window.front(), last = window.back();
  const auto held = static_cast<uint32_t>(std::max(1.0, kValidation * (last - first + 1)));
  const size_t split = static_cast<size_t>(
      std::lower_bound(window.begin(), window.end(), last + 1 - held) - window.begin());
  double penalty = std::numeric_limits<double>::infinity();
  if (split > 1) {
    const Moments some = moments_of(pool, x.row_range(0, split), y.subspan(0, split));
    const Standardized standard = standardize(some);
    double best = 0;
    for (size_t t = split; t < x.rows; ++t)
      best += (y[t] - some.mean_y[0]) * (y[t] - some.mean_y[0]);
    for (const double candidate : kRidgeGrid) {
      const RidgeFit fit = solve(pool, some, standard, candidate);
      const auto prediction = predict_rows(pool, fit, x.row_range(split, x.rows - split));
      double error = 0;
      for (size_t t = split; t < x.rows; ++t) {
        error += (y[t] - prediction[t - split]) * (y[t] - prediction[t - split]);
      }
      if (error < best) {
        best = error;
        penalty = candidate;
      }
    }
  }
  const Moments all = moments_of(pool, x, y);
  return solve(pool, all, standardize(all), penalty);
}

std::vector<double> predict_rows(ThreadPool& pool, const RidgeFit& fit, MatView<const float> x) {
  std::vector<double> out(x.rows);
  const size_t blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  pool.parallel_for(blocks, [&](size_t block, int) {
    const size_t end = std::min(x.rows, (block + 1) * kRowBlock);
    for (size_t t = block * kRowBlock; t < end; ++t) out[t] = fit.predict(x.row_span(t));
  });
  return out;
}

Interval held_out_r2(const BootstrapDraws& draws, std::span<const double> y,
                     std::span<const double> prediction, double mean,
                     std::span<const uint32_t> window, const IntervalOptions& options) {
  std::vector<double> sse(draws.windows, 0.0), sst(draws.windows, 0.0);
  for (size_t t = 0; t < y.size(); ++t) {
    sse[window[t]] += (y[t] - prediction[t]) * (y[t] - prediction[t]);
    sst[window[t]] += (y[t] - mean) * (y[t] - mean);
  }
  return r2_interval(draws, sse, sst, options);
}

}  // namespace halflin
