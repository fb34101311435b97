#include "halflin/mlp/surrogate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/ops/products.h"

namespace halflin {
namespace {

Matrix<float> to_floats(MatView<const double> from) {
  Matrix<float> to(from.rows, from.cols);
  for (size_t r = 0; r < from.rows; ++r) {
    for (size_t c = 0; c < from.cols; ++c) to(r, c) = static_cast<float>(from(r, c));
  }
  return to;
}

Matrix<double> to_doubles(MatView<const float> from) {
  Matrix<double> to(from.rows, from.cols);
  for (size_t r = 0; r < from.rows; ++r) {
    for (size_t c = 0; c < from.cols; ++c) to(r, c) = static_cast<double>(from(r, c));
  }
  return to;
}

Matrix<double> transpose(MatView<const double> from) {
  Matrix<double> to(from.cols, from.rows);
  for (size_t r = 0; r < from.rows; ++r) {
    for (size_t c = 0; c < from.cols; ++c) to(c, r) = from(r, c);
  }
  return to;
}

double r2_of(ThreadPool& pool, const Moments& moments, MatView<const double> weight,
             std::span<const float> bias) {
  const std::vector<double> wide(bias.begin(), bias.end());
  const std::vector<double> energy = residual_energy(pool, moments, weight, wide);
  const double sse = std::accumulate(energy.begin(), energy.end(), 0.0);
  const double sst = std::accumulate(moments.yy.begin(), moments.yy.end(), 0.0);
  if (sst > 0) return 1 - sse / sst;
  return sse > 0 ? 0 : 1;
}

}  // namespace

Affine make_affine(MatView<const double> weight, std::span<const double> bias) {
  Affine out;
  out.weight = to_floats(weight);
  out.bias.assign(bias.begin(), bias.end());
  return out;
}

Affine ridge(ThreadPool& pool, const Moments& moments, double lambda) {
  const Matrix<double> weight = ridge_weights(pool, moments, lambda);
  return make_affine(weight.view(), ridge_bias(moments, weight.view()));
}

LowRankAffine low_rank(ThreadPool& pool, const Moments& moments, double lambda, size_t rank) {
  const Matrix<double> weight = ridge_weights(pool, moments, lambda);  // [dx, dy]
  const size_t dx = weight.rows();
  const size_t dy = weight.cols();
  rank = std::min({rank, dx, dy});

  // By the normal equations W^T (xx + lambda I) W = W^T xy, symmetric up to rounding.
  Matrix<double> fitted(dy, dy);
  accumulate_products(pool, weight.view(), moments.xy.view(), fitted.view());
  for (size_t i = 0; i < dy; ++i) {
    for (size_t j = 0; j < i; ++j) {
      fitted(i, j) = fitted(j, i) = 0.5 * (fitted(i, j) + fitted(j, i));
    }
  }
  const Eigenpairs top = top_eigenpairs(fitted.view(), rank);

  LowRankAffine out;
  const Matrix<double> up = transpose(top.vectors.view());  // [r, dy]
  Matrix<double> down(dx, rank);                            // W V, as a sum over rows of W^T and V
  accumulate_products(pool, transpose(weight.view()).view(), top.vectors.view(), down.view());
  std::vector<double> shift(rank, 0.0);  // mean_x down
  for (size_t i = 0; i < dx; ++i) {
    for (size_t k = 0; k < rank; ++k) shift[k] += moments.mean_x[i] * down(i, k);
  }
  std::vector<double> bias = moments.mean_y;
  for (size_t k = 0; k < rank; ++k) {
    for (size_t j = 0; j < dy; ++j) bias[j] -= shift[k] * up(k, j);
  }
  out.down = to_floats(down.view());
  out.up = to_floats(up.view());
  out.bias.assign(bias.begin(), bias.end());
  return out;
}

double r2(ThreadPool& pool, const Moments& moments, const Affine& affine) {
  return r2_of(pool, moments, to_doubles(affine.weight.view()).view(), affine.bias);
}

double r2(ThreadPool& pool, const Moments& moments, const LowRankAffine& affine) {
  Matrix<double> weight(affine.down.rows(), affine.up.cols());
  const Matrix<double> down = to_doubles(affine.down.view());
  accumulate_products(pool, transpose(down.view()).view(), to_doubles(affine.up.view()).view(),
                      weight.view());
  return r2_of(pool, moments, weight.view(), affine.bias);
}

std::vector<double> error_energy(ThreadPool& pool, MatView<const float> a, MatView<const float> b) {
  if (a.rows != b.rows || a.cols != b.cols) {
    fail("error energy: shapes differ, {} x {} and {} x {}", a.rows, a.cols, b.rows, b.cols);
  }
  constexpr size_t kRowsPerTask = 256;
  std::vector<double> energy(a.rows, 0.0);
  pool.parallel_for((a.rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, int) {
    const size_t end = std::min(a.rows, (task + 1) * kRowsPerTask);
    for (size_t t = task * kRowsPerTask; t < end; ++t) {
      const float* p = a.row(t);
      const float* q = b.row(t);
      double sum[4] = {};
      size_t j = 0;
      for (; j + 4 <= a.cols; j += 4) {
        for (size_t k = 0; k < 4; ++k) {
          const double difference = static_cast<double>(p[j + k]) - static_cast<double>(q[j + k]);
          sum[k] += difference * difference;
        }
      }
      for (; j < a.cols; ++j) {
        const double difference = static_cast<double>(p[j]) - static_cast<double>(q[j]);
        sum[0] += difference * difference;
      }
      energy[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  });
  return energy;
}

std::vector<uint8_t> trim_mask(std::span<const double> energy, double fraction) {
  if (!(fraction >= 0 && fraction < 1))
    fail("trim: expected a fraction in [0, 1), found {}", fraction);
  std::vector<size_t> order(energy.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Largest first; NaN counts as larger than any number.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const bool a_nan = std::isnan(energy[a]);
    const bool b_nan = std::isnan(energy[b]);
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && energy[a] != energy[b]) return energy[a] > energy[b];
    return a > b;
  });
  const auto dropped =
      static_cast<size_t>(std::ceil(fraction * static_cast<double>(energy.size()) - 1e-9));
  std::vector<uint8_t> keep(energy.size(), 1);
  for (size_t i = 0; i < std::min(dropped, order.size()); ++i) keep[order[i]] = 0;
  return keep;
}

}  // namespace halflin
