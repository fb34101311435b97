#include "halflin/analyze/clusters.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "halflin/base/random.h"
#include "halflin/ops/linear.h"

namespace halflin {

namespace {

double squared_distance(const double* a, const double* b, size_t d) {
  double sum = 0;
  for (size_t i = 0; i < d; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

template <class Body>
void for_row_blocks(ThreadPool& pool, size_t rows, const Body& body) {
  pool.parallel_for((rows + kRowBlock - 1) / kRowBlock, [&](size_t block, int) {
    const size_t end = std::min(rows, (block + 1) * kRowBlock);
    for (size_t t = block * kRowBlock; t < end; ++t) body(t);
  });
}

// Nearest centres, with squared distances.
void assign(ThreadPool& pool, MatView<const double> z, MatView<const double> centres,
            std::span<uint32_t> assignment, std::span<double> distance) {
  for_row_blocks(pool, z.rows, [&](size_t t) {
    double best = std::numeric_limits<double>::infinity();
    uint32_t nearest = 0;
    for (size_t c = 0; c < centres.rows; ++c) {
      const double d = squared_distance(z.row(t), centres.row(c), z.cols);
      if (d < best) {
        best = d;
        nearest = static_cast<uint32_t>(c);
      }
    }
    assignment[t] = nearest;
    distance[t] = best;
  });
}

// Each next centre is a row, drawn by its squared distance to the nearest centre so far.
Matrix<double> seeds(ThreadPool& pool, MatView<const double> z, size_t k, Random& random) {
  Matrix<double> centres(k, z.cols);
  std::vector<double> nearest(z.rows, std::numeric_limits<double>::infinity());
  size_t row = random.below(z.rows);
  for (size_t c = 0; c < k; ++c) {
    std::copy_n(z.row(row), z.cols, centres.row(c));
    for_row_blocks(pool, z.rows, [&](size_t t) {
      nearest[t] = std::min(nearest[t], squared_distance(z.row(t), centres.row(c), z.cols));
    });
    const double total = std::accumulate(nearest.begin(), nearest.end(), 0.0);
    const double draw = random.uniform() * total;
    double sum = 0;
    row = random.below(z.rows);  // where every row is a centre already
    for (size_t t = 0; total > 0 && t < z.rows; ++t) {
      sum += nearest[t];
      if (nearest[t] > 0) row = t;
      if (sum > draw) break;
    }
  }
  return centres;
}

KMeans lloyd(ThreadPool& pool, MatView<const double> z, Matrix<double> centres, size_t passes) {
  const size_t k = centres.rows();
  KMeans out;
  out.assignment.assign(z.rows, 0);
  std::vector<uint32_t> before;
  std::vector<double> distance(z.rows);
  for (size_t pass = 0; pass <= passes; ++pass) {
    before = out.assignment;
    assign(pool, z, centres.view(), out.assignment, distance);
    if ((pass > 0 && before == out.assignment) || pass == passes) break;
    std::vector<double> counts(k, 0.0);
    std::fill(centres.span().begin(), centres.span().end(), 0.0);
    for (size_t t = 0; t < z.rows; ++t) {
      double* sum = centres.row(out.assignment[t]);
      for (size_t i = 0; i < z.cols; ++i) sum[i] += z(t, i);
      counts[out.assignment[t]] += 1;
    }
    for (size_t c = 0; c < k; ++c) {
      if (counts[c] > 0) {
        for (size_t i = 0; i < z.cols; ++i) centres(c, i) /= counts[c];
        continue;
      }
      const auto farthest = static_cast<size_t>(std::max_element(distance.begin(), distance.end()) -
                                                distance.begin());
      std::copy_n(z.row(farthest), z.cols, centres.row(c));
      distance[farthest] = 0;
    }
  }
  out.inertia = std::accumulate(distance.begin(), distance.end(), 0.0);
  out.centres = std::move(centres);
  return out;
}

}  // namespace

KMeans k_means(ThreadPool& pool, MatView<const double> z, const KMeansOptions& options) {
  const size_t k = std::clamp<size_t>(options.clusters, 1, z.rows);
  KMeans best;
  for (size_t restart = 0; restart < std::max<size_t>(1, options.restarts); ++restart) {
    Random random(options.seed, fmt::format("k-means restart {}", restart));
    KMeans found = lloyd(pool, z, seeds(pool, z, k, random), options.most_passes);
    if (restart == 0 || found.inertia < best.inertia) best = std::move(found);
  }
  return best;
}

std::vector<uint32_t> nearest_centre(ThreadPool& pool, MatView<const double> z,
                                     MatView<const double> centres) {
  std::vector<uint32_t> assignment(z.rows);
  std::vector<double> distance(z.rows);
  assign(pool, z, centres, assignment, distance);
  return assignment;
}

Projection principal_components(const Moments& moments, size_t k) {
  Projection out;
  out.mean = moments.mean_x;
  Eigenpairs pairs = top_eigenpairs(moments.xx.view(), std::min(k, moments.mean_x.size()));
  double total = 0, part = 0;
  for (size_t i = 0; i < moments.mean_x.size(); ++i) total += moments.xx(i, i);
  for (const double v : pairs.values) part += v;
  out.explained = total > 0 ? part / total : 0;
  out.vectors = std::move(pairs.vectors);
  return out;
}

Matrix<double> project(ThreadPool& pool, const Projection& projection, MatView<const float> x) {
  const size_t k = projection.vectors.cols();
  Matrix<double> z(x.rows, k);
  for_row_blocks(pool, x.rows, [&](size_t t) {
    double* out = z.row(t);
    for (size_t i = 0; i < x.cols; ++i) {
      const double v = static_cast<double>(x(t, i)) - projection.mean[i];
      const double* weights = projection.vectors.row(i);
      for (size_t c = 0; c < k; ++c) out[c] += v * weights[c];
    }
  });
  return z;
}

std::vector<ClusterResult> judge_clusters(
    size_t clusters, std::span<const uint32_t> train, std::span<const uint32_t> assignment,
    std::span<const float> delta, std::span<const int8_t> labels, std::span<const uint32_t> window,
    const BootstrapDraws& draws, const IntervalOptions& options) {
  std::vector<ClusterResult> out(clusters);
  for (const uint32_t c : train) ++out[c].train_tokens;
  for (size_t c = 0; c < clusters; ++c) {
    ClusterResult& result = out[c];
    result.cluster = c;
    std::vector<double> count(draws.windows, 0.0), sum(draws.windows, 0.0), ok(draws.windows, 0.0);
    for (size_t t = 0; t < assignment.size(); ++t) {
      if (assignment[t] != c || labels[t] < 0) continue;
      ++result.test_tokens;
      count[window[t]] += 1;
      sum[window[t]] += static_cast<double>(delta[t]);
      ok[window[t]] += labels[t] > 0 ? 1 : 0;
    }
    result.test_windows = static_cast<size_t>(
        std::count_if(count.begin(), count.end(), [](double n) { return n > 0; }));
    result.mean_delta = ratio(draws, sum, count, 1, options);
    result.linear_ok = ratio(draws, ok, count, 1, options);
    result.too_few =
        result.test_tokens < kFewestClusterTokens || result.test_windows < kFewestWindows;
    if (result.too_few) continue;
    result.never = result.linear_ok.lo > kAlmostAll;
    result.always = result.linear_ok.hi < 1 - kAlmostAll;
    result.mixed = result.linear_ok.lo > 1 - kAlmostAll && result.linear_ok.hi < kAlmostAll;
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& l, const auto& r) {
    return l.mean_delta.estimate < r.mean_delta.estimate;
  });
  return out;
}

}  // namespace halflin
