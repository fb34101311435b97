// k-means on the MLP's input: does any region of it need the MLP always, or never?
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/measure/statistics.h"
#include "halflin/mlp/least_squares.h"

namespace halflin {

struct KMeans {
  Matrix<double> centres;            // [k, d]
  std::vector<uint32_t> assignment;  // [T] of the rows that were fitted
  double inertia = 0;                // sum of squared distances to the nearest centre
};

struct KMeansOptions {
  size_t clusters = 20;
  size_t restarts = 4;
  size_t most_passes = 50;
  uint64_t seed = 0;
};

// Lloyd's iterations from k-means++ seeds (Arthur and Vassilvitskii, 2007), the best of some
// restarts. At most as many clusters as rows; a cluster that empties takes the row farthest from
// its centre. z is [T, d], T >= 1. Bit-identical for any number of threads.
KMeans k_means(ThreadPool& pool, MatView<const double> z, const KMeansOptions& options);

// The nearest centre of each row, [T]; of equals the first.
std::vector<uint32_t> nearest_centre(ThreadPool& pool, MatView<const double> z,
                                     MatView<const double> centres);

// Principal components of rows whose moments these are, raw (not standardised), and their share of
// the variance. At most `k`.
struct Projection {
  std::vector<double> mean;
  Matrix<double> vectors;  // [d, k]
  double explained = 0;
};
Projection principal_components(const Moments& moments, size_t k);
// (x - mean) vectors, [T, k].
Matrix<double> project(ThreadPool& pool, const Projection& projection, MatView<const float> x);

// A cluster's held-out tokens. "Linear is fine" is the paper's label: delta at most the median.
struct ClusterResult {
  size_t cluster = 0;
  size_t train_tokens = 0, test_tokens = 0, test_windows = 0;
  Interval mean_delta;   // nats
  Interval linear_ok;    // share of tokens whose label is 1
  bool too_few = false;  // under kFewestClusterTokens, or in too few windows
  bool never = false;    // linear_ok's interval lies above kAlmostAll: never needs the MLP
  bool always = false;   // below 1 - kAlmostAll: always needs it
  bool mixed = false;    // inside
};
inline constexpr size_t kFewestClusterTokens = 50;
inline constexpr double kAlmostAll = 0.9;

// `assignment`, delta, labels, window: held-out rows; window in [0, draws.windows).
std::vector<ClusterResult> judge_clusters(
    size_t clusters, std::span<const uint32_t> train, std::span<const uint32_t> assignment,
    std::span<const float> delta, std::span<const int8_t> labels, std::span<const uint32_t> window,
    const BootstrapDraws& draws, const IntervalOptions& options);

}  // namespace halflin
