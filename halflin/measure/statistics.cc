#include "halflin/measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/base/random.h"

namespace halflin {
namespace {

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Linear interpolation between order statistics, as numpy does.
double quantile(std::span<const double> sorted, double q) {
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (position - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

// Share of draws below `value`, draws equal to it counting half, kept off 0 and 1 by one draw in
// draws + 1. Draws within rounding of the value count as equal.
double share_below(std::span<const double> sorted, double value, double rounding) {
  const auto first = std::lower_bound(sorted.begin(), sorted.end(), value - rounding);
  const auto last = std::upper_bound(sorted.begin(), sorted.end(), value + rounding);
  const double n = static_cast<double>(sorted.size());
  const double below = static_cast<double>(first - sorted.begin());
  const double equal = static_cast<double>(last - first);
  return std::clamp((below + 0.5 * equal) / n, 1 / (n + 1), n / (n + 1));
}

// Efron's acceleration from leave-one-window-out values: skewness / 6 of their influence.
double acceleration(std::span<const double> jackknife) {
  if (jackknife.empty()) return 0;
  const double mean = sum(jackknife) / static_cast<double>(jackknife.size());
  double squares = 0, cubes = 0;
  for (const double v : jackknife) {
    const double d = mean - v;
    squares += d * d;
    cubes += d * d * d;
  }
  const double denominator = 6 * std::pow(squares, 1.5);
  return denominator > 0 ? cubes / denominator : 0;
}

// The interval from draws of a statistic, and p for the hypothesis that the true value is `null`.
Interval interval_of(double estimate, std::vector<double> values, std::span<const double> jackknife,
                     double null, size_t windows, const IntervalOptions& options) {
  if (!(options.confidence > 0 && options.confidence < 1)) {
    fail("interval: expected a confidence between 0 and 1, found {}", options.confidence);
  }
  Interval out;
  out.estimate = out.lo = out.hi = estimate;
  out.windows = windows;
  out.too_few = windows < kFewestWindows || values.empty();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  // Resampled sums add in another order; equality of statistics is up to rounding.
  const double rounding =
      1e-12 * std::max({std::abs(values.front()), std::abs(values.back()), std::abs(estimate)});

  double z0 = 0, a = 0;
  if (options.kind == IntervalKind::kBCa) {
    z0 = normal_quantile(share_below(values, estimate, rounding));
    a = acceleration(jackknife);
  }
  const double tail = normal_quantile(0.5 * (1 - options.confidence));
  const auto end = [&](double z) {
    const double w = z0 + z;
    // Beyond the pole of the correction (extreme skewness) the end is the outermost draw.
    const double shrink = 1 - a * w;
    return quantile(values, shrink > 0 ? normal_cdf(z0 + w / shrink) : (w < 0 ? 0.0 : 1.0));
  };
  out.lo = end(tail);
  out.hi = end(-tail);

  if (out.too_few) return out;
  // The z at which an end touches `null`: `end` inverted.
  const double w = normal_quantile(share_below(values, null, rounding)) - z0;
  const double stretch = 1 + a * w;
  const double n = static_cast<double>(values.size());
  double one_sided = 0;
  if (stretch > 0) {
    const double z = w / stretch - z0;
    one_sided = std::min(normal_cdf(z), normal_cdf(-z));
  }
  out.p = std::clamp(2 * one_sided, 2 / (n + 1), 1.0);
  return out;
}

// Every statistic of sums over windows here is monotone in one ratio, sum of part / sum of whole.
template <class Transform>
Interval ratio_interval(const BootstrapDraws& draws, std::span<const double> part,
                        std::span<const double> whole, double null, Transform transform,
                        const IntervalOptions& options) {
  const size_t windows = draws.windows;
  if (part.size() != windows || whole.size() != windows) {
    fail("bootstrap: drawn for {} windows, found {} and {}", windows, part.size(), whole.size());
  }
  for (size_t w = 0; w < windows; ++w) {
    if (!std::isfinite(part[w]) || !std::isfinite(whole[w]) || whole[w] < 0) {
      fail("bootstrap: window {} has the sums {} and {}", w, part[w], whole[w]);
    }
  }
  const double part_sum = sum(part);
  const double whole_sum = sum(whole);
  if (!(whole_sum > 0)) {
    Interval out;
    out.windows = windows;
    out.too_few = true;
    return out;
  }
  std::vector<double> values;
  values.reserve(draws.counts.rows());
  for (size_t r = 0; r < draws.counts.rows(); ++r) {
    const uint16_t* counts = draws.counts.row(r);
    double p = 0, q = 0;
    for (size_t w = 0; w < windows; ++w) {
      p += counts[w] * part[w];
      q += counts[w] * whole[w];
    }
    if (q > 0) values.push_back(transform(p / q));
  }
  std::vector<double> jackknife;
  for (size_t w = 0; w < windows; ++w) {
    const double q = whole_sum - whole[w];
    if (q > 1e-12 * whole_sum) jackknife.push_back(transform((part_sum - part[w]) / q));
  }
  return interval_of(transform(part_sum / whole_sum), std::move(values), jackknife, null, windows,
                     options);
}

// Tokens with a usable score and label, by rising score.
std::vector<uint32_t> ranked_tokens(std::span<const float> scores, std::span<const int8_t> labels) {
  if (scores.size() != labels.size()) {
    fail("AUC: {} scores but {} labels", scores.size(), labels.size());
  }
  std::vector<uint32_t> order;
  order.reserve(scores.size());
  for (size_t t = 0; t < scores.size(); ++t) {
    if (!std::isnan(scores[t]) && labels[t] >= 0) order.push_back(static_cast<uint32_t>(t));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] < scores[b]; });
  return order;
}

// Calls body(first, last) for each run of equal scores in `order`.
template <class Body>
void for_runs(std::span<const uint32_t> order, std::span<const float> scores, Body body) {
  for (size_t first = 0; first < order.size();) {
    size_t last = first + 1;
    while (last < order.size() && scores[order[last]] == scores[order[first]]) ++last;
    body(first, last);
    first = last;
  }
}

}  // namespace

BootstrapDraws draw_windows(size_t windows, size_t draws, uint64_t seed) {
  if (windows > std::numeric_limits<uint16_t>::max()) {
    fail("bootstrap: expected at most 65535 windows, found {}", windows);
  }
  BootstrapDraws out;
  out.windows = windows;
  out.seed = seed;
  out.counts = Matrix<uint16_t>(windows == 0 ? 0 : draws, windows);
  Random random(seed, "bootstrap over windows");
  for (size_t r = 0; r < out.counts.rows(); ++r) {
    uint16_t* counts = out.counts.row(r);
    for (size_t i = 0; i < windows; ++i) ++counts[random.below(windows)];
  }
  return out;
}

Interval delta_ppl(const BootstrapDraws& draws, std::span<const double> base,
                   std::span<const double> variant, std::span<const double> predictions,
                   const IntervalOptions& options) {
  if (base.size() != variant.size()) {
    fail("bootstrap: {} windows of the model but {} of the variant", base.size(), variant.size());
  }
  std::vector<double> difference(base.size());
  for (size_t w = 0; w < base.size(); ++w) difference[w] = variant[w] - base[w];
  return ratio_interval(
      draws, difference, predictions, 0, [](double d) { return 100 * std::expm1(d); }, options);
}

Interval perplexity(const BootstrapDraws& draws, std::span<const double> loss,
                    std::span<const double> predictions, const IntervalOptions& options) {
  return ratio_interval(
      draws, loss, predictions, 0, [](double l) { return std::exp(l); }, options);
}

Interval r2_interval(const BootstrapDraws& draws, std::span<const double> sse,
                     std::span<const double> sst, const IntervalOptions& options) {
  return ratio_interval(
      draws, sse, sst, 0, [](double r) { return 1 - r; }, options);
}

Interval ratio(const BootstrapDraws& draws, std::span<const double> part,
               std::span<const double> whole, double factor, const IntervalOptions& options) {
  return ratio_interval(
      draws, part, whole, 0, [factor](double r) { return factor * r; }, options);
}

double auc(std::span<const float> scores, std::span<const int8_t> labels) {
  const std::vector<uint32_t> order = ranked_tokens(scores, labels);
  double negatives = 0, positives = 0, pairs = 0;
  for_runs(order, scores, [&](size_t first, size_t last) {
    double ones = 0;
    for (size_t i = first; i < last; ++i) ones += labels[order[i]] > 0;
    const double zeros = static_cast<double>(last - first) - ones;
    pairs += ones * (negatives + 0.5 * zeros);
    positives += ones;
    negatives += zeros;
  });
  return positives > 0 && negatives > 0 ? pairs / (positives * negatives) : 0.5;
}

Interval auc_interval(ThreadPool& pool, const BootstrapDraws& draws, std::span<const float> scores,
                      std::span<const int8_t> labels, std::span<const uint32_t> window,
                      const IntervalOptions& options) {
  // won[i, j]: pairs of a positive of block i and a negative of block j where the positive scores
  // higher. Every draw, and every jackknife value, is then a quadratic form in this small matrix.
  // Many short windows are joined into at most kMostBlocks runs of neighbours first.
  constexpr size_t kMostBlocks = 256;
  if (window.size() != scores.size()) {
    fail("AUC: {} scores but {} window numbers", scores.size(), window.size());
  }
  const size_t windows = draws.windows;
  const std::vector<uint32_t> order = ranked_tokens(scores, labels);
  for (const uint32_t t : order) {
    if (window[t] >= windows) fail("AUC: window {} of {}", window[t], windows);
  }
  const size_t blocks = std::min(windows, kMostBlocks);
  BootstrapDraws block_draws;
  if (blocks != windows) block_draws = draw_windows(blocks, draws.counts.rows(), draws.seed);
  const Matrix<uint16_t>& counts = blocks == windows ? draws.counts : block_draws.counts;
  const auto block_of = [&](uint32_t t) {
    return blocks == windows ? window[t] : static_cast<size_t>(window[t]) * blocks / windows;
  };

  Matrix<double> won(blocks, blocks);
  std::vector<double> positives(blocks, 0.0), negatives(blocks, 0.0), tied(blocks, 0.0);
  for_runs(order, scores, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      if (labels[order[i]] == 0) tied[block_of(order[i])] += 0.5;
    }
    for (size_t i = first; i < last; ++i) {
      if (labels[order[i]] == 0) continue;
      const size_t b = block_of(order[i]);
      positives[b] += 1;
      double* row = won.row(b);
      for (size_t j = 0; j < blocks; ++j) row[j] += negatives[j] + tied[j];
    }
    for (size_t i = first; i < last; ++i) {
      if (labels[order[i]] != 0) continue;
      const size_t b = block_of(order[i]);
      negatives[b] += 1;
      tied[b] = 0;
    }
  });

  const double all_positives = sum(positives);
  const double all_negatives = sum(negatives);
  if (!(all_positives > 0 && all_negatives > 0)) {
    Interval out;
    out.estimate = 0.5;
    out.lo = 0;
    out.hi = 1;
    out.windows = windows;
    out.too_few = true;
    return out;
  }
  std::vector<double> row_sums(blocks, 0.0), column_sums(blocks, 0.0);
  for (size_t i = 0; i < blocks; ++i) {
    for (size_t j = 0; j < blocks; ++j) {
      row_sums[i] += won(i, j);
      column_sums[j] += won(i, j);
    }
  }
  const double all_won = sum(row_sums);

  std::vector<double> drawn(counts.rows(), -1.0);
  constexpr size_t kDrawsPerTask = 256;
  pool.parallel_for((counts.rows() + kDrawsPerTask - 1) / kDrawsPerTask, [&](size_t task, int) {
    const size_t end = std::min(counts.rows(), (task + 1) * kDrawsPerTask);
    std::vector<double> times(blocks);
    for (size_t r = task * kDrawsPerTask; r < end; ++r) {
      std::copy_n(counts.row(r), blocks, times.begin());
      double p = 0, q = 0, pairs = 0;
      for (size_t i = 0; i < blocks; ++i) {
        p += times[i] * positives[i];
        q += times[i] * negatives[i];
        if (times[i] == 0) continue;
        const double* row = won.row(i);
        double beaten[4] = {};
        size_t j = 0;
        for (; j + 4 <= blocks; j += 4) {
          for (size_t k = 0; k < 4; ++k) beaten[k] += times[j + k] * row[j + k];
        }
        for (; j < blocks; ++j) beaten[0] += times[j] * row[j];
        pairs += times[i] * ((beaten[0] + beaten[1]) + (beaten[2] + beaten[3]));
      }
      if (p > 0 && q > 0) drawn[r] = pairs / (p * q);
    }
  });
  std::erase(drawn, -1.0);
  std::vector<double> jackknife;
  for (size_t b = 0; b < blocks; ++b) {
    const double p = all_positives - positives[b];
    const double q = all_negatives - negatives[b];
    if (!(p > 0 && q > 0)) continue;
    jackknife.push_back((all_won - row_sums[b] - column_sums[b] + won(b, b)) / (p * q));
  }
  return interval_of(all_won / (all_positives * all_negatives), std::move(drawn), jackknife, 0.5,
                     windows, options);
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) fail("rank correlation of {} and {} values", a.size(), b.size());
  const double mean = (static_cast<double>(a.size()) + 1) / 2;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto rank = [&](std::span<const double> values) {
      double below = 0, equal = 0;
      for (const double v : values) {
        below += v < values[i];
        equal += v == values[i];
      }
      return below + (equal + 1) / 2 - mean;
    };
    const double ra = rank(a);
    const double rb = rank(b);
    ab += ra * rb;
    aa += ra * ra;
    bb += rb * rb;
  }
  return ab / std::sqrt(aa * bb);
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> adjusted(p.size());
  double running = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    running = std::max(running, static_cast<double>(p.size() - i) * p[order[i]]);
    adjusted[order[i]] = std::min(running, 1.0);
  }
  return adjusted;
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

double normal_quantile(double q) {
  if (!(q > 0 && q < 1)) fail("normal quantile: expected a value between 0 and 1, found {}", q);
  const auto polynomial = [](const double(&c)[8], double x) {
    double value = c[7];
    for (int i = 6; i >= 0; --i) value = value * x + c[i];
    return value;
  };
  // AS 241, PPND16: rational approximations in three regions, about 16 digits.
  static constexpr double kA[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                   1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                   4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                   3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr double kB[8] = {1.0,
                                   4.2313330701600911252e+1,
                                   6.8718700749205790830e+2,
                                   5.3941960214247511077e+3,
                                   2.1213794301586595867e+4,
                                   3.9307895800092710610e+4,
                                   2.8729085735721942674e+4,
                                   5.2264952788528545610e+3};
  static constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                   5.76949722146069140550e0,  3.64784832476320460504e0,
                                   1.27045825245236838258e0,  2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  static constexpr double kE[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                   1.78482653991729133580e0,  2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[8] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double centred = q - 0.5;
  if (std::abs(centred) <= 0.425) {
    const double r = 0.180625 - centred * centred;
    return centred * polynomial(kA, r) / polynomial(kB, r);
  }
  const double r = std::sqrt(-std::log(centred < 0 ? q : 1 - q));
  const double z = r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6)
                          : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return centred < 0 ? -z : z;
}

}  // namespace halflin
