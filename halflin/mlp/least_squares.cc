#include "halflin/mlp/least_squares.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/ops/products.h"

namespace halflin {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using ConstMap = Eigen::Map<const RowMajor, Eigen::Unaligned, Stride>;

Eigen::Index index(size_t n) { return static_cast<Eigen::Index>(n); }

ConstMap map(MatView<const double> m) {
  return {m.data, index(m.rows), index(m.cols), Stride(index(m.stride))};
}

// Rows of a block: long enough that the one extra row of the merge costs nothing, short enough that
// a wide y (thousands of neurons) stays within tens of megabytes.
constexpr size_t kBlockRows = 512;
constexpr size_t kColumnsPerTask = 64;

std::vector<size_t> kept_rows(size_t rows, std::span<const uint8_t> keep) {
  if (!keep.empty() && keep.size() != rows) {
    fail("least squares: {} rows but {} keep flags", rows, keep.size());
  }
  std::vector<size_t> kept;
  kept.reserve(rows);
  for (size_t t = 0; t < rows; ++t) {
    if (keep.empty() || keep[t] != 0) kept.push_back(t);
  }
  return kept;
}

// Fills columns [begin, end) of `block` with the rows centred on the block's own mean. The last row
// becomes sqrt(n m / (n + m)) (block mean - running mean): its products are exactly the correction
// that merging n old and m new rows needs. Then moves the running mean; adds squares to `squares`.
void centre_columns(MatView<const float> source, std::span<const size_t> rows, size_t begin,
                    size_t end, size_t n, std::span<double> mean, MatView<double> block,
                    std::span<double> squares) {
  const double m = static_cast<double>(rows.size());
  const double total = static_cast<double>(n) + m;
  std::vector<double> sum(end - begin, 0.0);
  for (const size_t t : rows) {
    const float* from = source.row(t);
    for (size_t j = begin; j < end; ++j) sum[j - begin] += static_cast<double>(from[j]);
  }
  for (double& s : sum) s /= m;
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* from = source.row(rows[r]);
    double* to = block.row(r);
    for (size_t j = begin; j < end; ++j) to[j] = static_cast<double>(from[j]) - sum[j - begin];
  }
  const double merge = std::sqrt(static_cast<double>(n) * m / total);
  double* last = block.row(rows.size());
  for (size_t j = begin; j < end; ++j) {
    const double shift = sum[j - begin] - mean[j];
    last[j] = n == 0 ? 0 : merge * shift;
    mean[j] += shift * (m / total);
  }
  if (squares.empty()) return;
  for (size_t r = 0; r <= rows.size(); ++r) {
    const double* values = block.row(r);
    for (size_t j = begin; j < end; ++j) squares[j] += values[j] * values[j];
  }
}

// The upper half of x^T x by panels, then mirrored: half the work of the full product.
void accumulate_symmetric(ThreadPool& pool, MatView<const double> x, MatView<double> c) {
  constexpr size_t kPanel = 192;
  for (size_t i = 0; i < x.cols; i += kPanel) {
    const size_t width = std::min(kPanel, x.cols - i);
    accumulate_products(pool, x.col_range(i, width), x.col_range(i, x.cols - i),
                        c.row_range(i, width).col_range(i, x.cols - i));
  }
}

void mirror_upper(Matrix<double>& c) {
  for (size_t i = 1; i < c.rows(); ++i) {
    for (size_t j = 0; j < i; ++j) c(i, j) = c(j, i);
  }
}

bool all_finite(MatView<const double> m) {
  for (size_t r = 0; r < m.rows; ++r) {
    for (const double v : m.row_span(r)) {
      if (!std::isfinite(v)) return false;
    }
  }
  return true;
}

void require_finite(const Moments& moments) {
  if (moments.n == 0) fail("least squares: no rows to fit");
  for (size_t j = 0; j < moments.mean_x.size(); ++j) {
    if (!std::isfinite(moments.mean_x[j]) || !std::isfinite(moments.xx(j, j))) {
      fail("least squares: input feature {} holds NaN or Inf", j);
    }
  }
  for (size_t j = 0; j < moments.mean_y.size(); ++j) {
    if (!std::isfinite(moments.mean_y[j]) || !std::isfinite(moments.yy[j])) {
      fail("least squares: output column {} holds NaN or Inf", j);
    }
  }
}

}  // namespace

Moments::Moments(size_t dx, size_t dy)
    : mean_x(dx, 0.0), mean_y(dy, 0.0), xx(dx, dx), xy(dx, dy), yy(dy, 0.0) {}

void Moments::add(ThreadPool& pool, MatView<const float> x, MatView<const float> y,
                  std::span<const uint8_t> keep) {
  const size_t dx = mean_x.size();
  const size_t dy = mean_y.size();
  if (x.cols != dx || y.cols != dy || (dy != 0 && y.rows != x.rows)) {
    fail("least squares: expected x of {} and y of {} columns, found x {} x {} and y {} x {}", dx,
         dy, x.rows, x.cols, y.rows, y.cols);
  }
  const std::vector<size_t> kept = kept_rows(x.rows, keep);
  const size_t most = std::min(kept.size(), kBlockRows) + 1;
  Matrix<double> x_block(most, dx);
  Matrix<double> y_block(most, dy);
  const size_t x_tasks = (dx + kColumnsPerTask - 1) / kColumnsPerTask;
  const size_t y_tasks = (dy + kColumnsPerTask - 1) / kColumnsPerTask;
  for (size_t begin = 0; begin < kept.size(); begin += kBlockRows) {
    const std::span<const size_t> rows =
        std::span(kept).subspan(begin, std::min(kBlockRows, kept.size() - begin));
    pool.parallel_for(x_tasks + y_tasks, [&](size_t task, int) {
      const bool is_x = task < x_tasks;
      const size_t first = (is_x ? task : task - x_tasks) * kColumnsPerTask;
      const size_t last = std::min(first + kColumnsPerTask, is_x ? dx : dy);
      if (is_x) {
        centre_columns(x, rows, first, last, n, mean_x, x_block.view(), {});
      } else {
        centre_columns(y, rows, first, last, n, mean_y, y_block.view(), yy);
      }
    });
    const MatView<const double> xb = x_block.view().row_range(0, rows.size() + 1);
    const MatView<const double> yb = y_block.view().row_range(0, rows.size() + 1);
    accumulate_symmetric(pool, xb, xx.view());
    if (dy != 0) accumulate_products(pool, xb, yb, xy.view());
    n += rows.size();
  }
  mirror_upper(xx);
}

Moments with_targets(ThreadPool& pool, const Moments& moments, MatView<const float> x,
                     MatView<const float> y, std::span<const uint8_t> keep) {
  const size_t dx = moments.mean_x.size();
  const std::vector<size_t> kept = kept_rows(x.rows, keep);
  if (x.cols != dx || y.rows != x.rows || kept.size() != moments.n) {
    fail("least squares: moments of {} rows x {}, but targets for {} rows x {}", moments.n, dx,
         kept.size(), x.cols);
  }
  Moments out(dx, y.cols);
  out.n = moments.n;
  out.mean_x = moments.mean_x;
  std::copy_n(moments.xx.data(), moments.xx.size(), out.xx.data());
  for (const size_t t : kept) {
    for (size_t j = 0; j < y.cols; ++j) out.mean_y[j] += static_cast<double>(y(t, j));
  }
  for (double& m : out.mean_y) m /= static_cast<double>(std::max<size_t>(kept.size(), 1));

  // Blocks of rows are summed apart and then in order: the same for any number of threads.
  const size_t blocks = (kept.size() + kBlockRows - 1) / kBlockRows;
  std::vector<Matrix<double>> partial(blocks);
  pool.parallel_for(blocks, [&](size_t b, int) {
    partial[b] = Matrix<double>(dx + 1, y.cols);
    std::vector<double> target(y.cols);
    const size_t end = std::min(kept.size(), (b + 1) * kBlockRows);
    for (size_t r = b * kBlockRows; r < end; ++r) {
      const float* row = x.row(kept[r]);
      for (size_t j = 0; j < y.cols; ++j) {
        target[j] = static_cast<double>(y(kept[r], j)) - out.mean_y[j];
        partial[b](dx, j) += target[j] * target[j];
      }
      for (size_t i = 0; i < dx; ++i) {
        const double v = static_cast<double>(row[i]) - out.mean_x[i];
        double* sums = partial[b].row(i);
        for (size_t j = 0; j < y.cols; ++j) sums[j] += v * target[j];
      }
    }
  });
  for (const Matrix<double>& p : partial) {
    for (size_t i = 0; i < out.xy.size(); ++i) out.xy.data()[i] += p.data()[i];
    for (size_t j = 0; j < y.cols; ++j) out.yy[j] += p(dx, j);
  }
  return out;
}

SpdFactor factor_spd(MatView<const double> a, double lambda) {
  if (!(lambda >= 0) || !std::isfinite(lambda)) {
    fail("least squares: expected a penalty of 0 or more, found {}", lambda);
  }
  if (!all_finite(a)) fail("least squares: the products hold NaN or Inf");
  const Eigen::Index n = index(a.rows);
  SpdFactor out;
  out.factor = Matrix<double>(a.rows, a.rows);
  if (n == 0) return out;
  RowMajor shifted = map(a);
  shifted.diagonal().array() += lambda;
  Eigen::Map<RowMajor> factor(out.factor.data(), n, n);
  const double precision = static_cast<double>(n) * std::numeric_limits<double>::epsilon();

  const Eigen::LLT<RowMajor, Eigen::Lower> cholesky(shifted);
  if (cholesky.info() == Eigen::Success && cholesky.rcond() > precision) {
    factor = cholesky.matrixL();
    return out;
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(map(a));
  if (eigen.info() != Eigen::Success) fail("least squares: the eigenvalues do not converge");
  factor = eigen.eigenvectors();
  // A direction without variance has no products with y either: it gets weight 0, penalised or not.
  const double cut = precision * std::max(eigen.eigenvalues()[n - 1], 0.0);
  out.inverse_values.resize(a.rows);
  for (size_t i = 0; i < a.rows; ++i) {
    const double value = eigen.eigenvalues()[index(i)];
    out.inverse_values[i] = value > cut ? 1 / (value + lambda) : 0;
  }
  return out;
}

void solve_in_place(ThreadPool& pool, const SpdFactor& factor, MatView<double> b) {
  if (b.rows != factor.factor.rows()) {
    fail("least squares: expected {} rows on the right, found {}", factor.factor.rows(), b.rows);
  }
  if (b.rows == 0 || b.cols == 0) return;
  constexpr size_t kPanel = 64;
  const ConstMap f = map(factor.factor.view());
  pool.parallel_for((b.cols + kPanel - 1) / kPanel, [&](size_t task, int) {
    const size_t first = task * kPanel;
    const size_t width = std::min(kPanel, b.cols - first);
    Eigen::Map<RowMajor, Eigen::Unaligned, Stride> panel(b.data + first, index(b.rows),
                                                         index(width), Stride(index(b.stride)));
    Eigen::MatrixXd x = panel;
    if (factor.inverse_values.empty()) {
      f.triangularView<Eigen::Lower>().solveInPlace(x);
      f.transpose().triangularView<Eigen::Upper>().solveInPlace(x);
    } else {
      const Eigen::Map<const Eigen::VectorXd> inverse(factor.inverse_values.data(), index(b.rows));
      x = (f * (inverse.asDiagonal() * (f.transpose() * x))).eval();
    }
    panel = x;
  });
}

Matrix<double> ridge_weights(ThreadPool& pool, const Moments& moments, double lambda) {
  require_finite(moments);
  Matrix<double> weight(moments.xy.rows(), moments.xy.cols());
  std::copy_n(moments.xy.data(), moments.xy.size(), weight.data());
  solve_in_place(pool, factor_spd(moments.xx.view(), lambda), weight.view());
  return weight;
}

std::vector<double> ridge_bias(const Moments& moments, MatView<const double> weight) {
  std::vector<double> bias = moments.mean_y;
  for (size_t i = 0; i < weight.rows; ++i) {
    for (size_t j = 0; j < weight.cols; ++j) bias[j] -= moments.mean_x[i] * weight(i, j);
  }
  return bias;
}

std::vector<double> residual_energy(ThreadPool& pool, const Moments& moments,
                                    MatView<const double> weight, std::span<const double> bias) {
  const size_t dx = moments.xy.rows();
  const size_t dy = moments.xy.cols();
  if (weight.rows != dx || weight.cols != dy || bias.size() != dy) {
    fail("least squares: expected weights of {} x {}, found {} x {} and {} biases", dx, dy,
         weight.rows, weight.cols, bias.size());
  }
  require_finite(moments);
  Matrix<double> fitted(dx, dy);  // xx W; xx is symmetric, so a sum over its rows is the product
  accumulate_products(pool, moments.xx.view(), weight, fitted.view());
  // yy - 2 W^T xy + W^T xx W about the means, and the offset between the means n times.
  std::vector<double> energy = moments.yy;
  for (size_t i = 0; i < dx; ++i) {
    for (size_t j = 0; j < dy; ++j) {
      energy[j] += weight(i, j) * (fitted(i, j) - 2 * moments.xy(i, j));
    }
  }
  const std::vector<double> offset = ridge_bias(moments, weight);
  for (size_t j = 0; j < dy; ++j) {
    const double shift = offset[j] - bias[j];
    // Differences of large sums: an exact fit may round to just below 0.
    energy[j] = std::max(energy[j], 0.0) + static_cast<double>(moments.n) * shift * shift;
  }
  return energy;
}

Eigenpairs top_eigenpairs(MatView<const double> a, size_t k) {
  if (!all_finite(a)) fail("eigenvalues: the matrix holds NaN or Inf");
  const size_t n = a.rows;
  k = std::min(k, n);
  Eigenpairs out;
  out.values.resize(k);
  out.vectors = Matrix<double>(n, k);
  if (k == 0) return out;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(map(a));
  if (eigen.info() != Eigen::Success) fail("eigenvalues: no convergence");
  for (size_t c = 0; c < k; ++c) {
    const Eigen::Index from = index(n - 1 - c);  // Eigen sorts in rising order
    out.values[c] = eigen.eigenvalues()[from];
    Eigen::Index largest = 0;
    eigen.eigenvectors().col(from).cwiseAbs().maxCoeff(&largest);
    const double sign = eigen.eigenvectors()(largest, from) < 0 ? -1 : 1;
    for (size_t r = 0; r < n; ++r) out.vectors(r, c) = sign * eigen.eigenvectors()(index(r), from);
  }
  return out;
}

Standardized standardize(const Moments& moments) {
  require_finite(moments);
  const size_t d = moments.mean_x.size();
  const double n = static_cast<double>(moments.n);
  Standardized out;
  out.n = moments.n;
  out.mean = moments.mean_x;
  out.scale.assign(d, 1.0);
  std::vector<uint8_t> constant(d, 0);
  for (size_t j = 0; j < d; ++j) {
    // scikit-learn's test: a variance that rounding alone could have made counts as none.
    const double variance = std::max(moments.xx(j, j), 0.0) / n;
    const double rounding = n * std::abs(out.mean[j]) * std::numeric_limits<double>::epsilon();
    constant[j] =
        variance <= n * std::numeric_limits<double>::epsilon() * variance + rounding * rounding;
    if (!constant[j]) out.scale[j] = std::sqrt(variance);
  }
  out.gram = Matrix<double>(d, d);
  for (size_t i = 0; i < d; ++i) {
    if (constant[i]) continue;
    for (size_t j = 0; j < d; ++j) {
      if (!constant[j]) out.gram(i, j) = moments.xx(i, j) / (out.scale[i] * out.scale[j]);
    }
  }
  return out;
}

}  // namespace halflin
