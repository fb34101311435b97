// Intervals of statistics that are no ratio of sums, by resampling whole windows.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "halflin/measure/statistics.h"

namespace halflin {

// numpy's linear interpolation, q in [0, 1]; `sorted` rises and is not empty.
double quantile(std::span<const double> sorted, double q);

// statistic(counts) for up to `most` of the draws, counts[w] how often window w was drawn; values
// that are not finite are left out. One draw a task.
std::vector<double> drawn_values(
    ThreadPool& pool, const BootstrapDraws& draws, size_t most,
    const std::function<double(std::span<const uint16_t> counts)>& statistic);

// The interval between the percentiles of what the draws gave.
Interval percentile_interval(double estimate, std::vector<double> values, size_t windows,
                             double confidence);

// The estimate +- the draws' standard deviation on Fisher's z: for correlations of means that are
// noisy themselves. Resampled means are noisier still, so their correlations lie nearer to 0 than
// the estimate, and percentiles would be off; their spread is not.
Interval fisher_interval(double estimate, std::span<const double> values, size_t windows,
                         double confidence);

// Pearson's correlation over rows; 0 where one side is constant.
double pearson(std::span<const double> a, std::span<const double> b);

// The same over tokens with an interval; window[t] in [0, draws.windows).
Interval pearson_interval(ThreadPool& pool, const BootstrapDraws& draws, std::span<const float> a,
                          std::span<const float> b, std::span<const uint32_t> window,
                          double confidence);

// AUC of `a` minus AUC of `b`, on the same tokens, labels and draws (paired). Labels below 0 are
// left out.
Interval auc_difference(ThreadPool& pool, const BootstrapDraws& draws, std::span<const float> a,
                        std::span<const float> b, std::span<const int8_t> labels,
                        std::span<const uint32_t> window, double confidence);

// {"value", "ci_lo", "ci_hi"}, and "too_few" (how many windows) where that is why it says little.
nlohmann::json figure(const Interval& interval);

}  // namespace halflin
