// How much of a token's loss difference delta can be predicted, on windows that fitted nothing.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "halflin/measure/statistics.h"

namespace halflin {

// Means of y by group, drawn towards the overall mean by how little a group of its size can be
// trusted: a random-effects model, mean + n / (n + k) (group mean - mean), k the variance within
// groups over the variance between them (method of moments, one-way analysis of variance). Where
// groups differ no more than chance lets them, every prediction is the mean.
struct GroupMeans {
  double mean = 0;
  double within = 0;                           // variance in a group
  double between = 0;                          // variance of the groups' true means, at least 0
  std::unordered_map<int32_t, double> effect;  // shrunken distance from the mean

  double predict(int32_t group) const;
};
GroupMeans fit_group_means(std::span<const int32_t> group, std::span<const double> y);

// Ridge regression of y on standardised features, x [T, k]. The penalty, in units of rows, is the
// one of kRidgeGrid (or: the mean alone) that predicts best the last fifth of the rows' windows
// from the others; the fit is then on all rows. window [T] rises.
struct RidgeFit {
  std::vector<double> weight;  // [k] on raw features
  double bias = 0;
  double penalty = 0;  // chosen; infinity: the mean alone

  double predict(std::span<const float> row) const;
};
inline constexpr double kRidgeGrid[] = {1e-3, 1e-2, 1e-1, 1, 10, 100};
RidgeFit fit_ridge(ThreadPool& pool, MatView<const float> x, std::span<const double> y,
                   std::span<const uint32_t> window);

// Predictions of each row, [T].
std::vector<double> predict_rows(ThreadPool& pool, const RidgeFit& fit, MatView<const float> x);

// 1 - sum (y - prediction)^2 / sum (y - mean)^2 with an interval; `mean` is that of the rows which
// fitted, so that predicting it is R^2 = 0.
Interval held_out_r2(const BootstrapDraws& draws, std::span<const double> y,
                     std::span<const double> prediction, double mean,
                     std::span<const uint32_t> window, const IntervalOptions& options);

}  // namespace halflin
