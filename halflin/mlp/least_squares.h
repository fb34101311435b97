// mlp/: what may stand in an MLP's place, and how it is fitted: linear surrogates, folded MLPs,
// gates.
//
// Least squares from streamed moments, in float64: the memory needed does not grow with the rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

// Means and centred sums of products of rows (x, y) seen so far. Sums, not averages: a covariance
// is xx / n.
struct Moments {
  Moments() = default;
  Moments(size_t dx, size_t dy);

  size_t n = 0;                // rows
  std::vector<double> mean_x;  // [dx]
  std::vector<double> mean_y;  // [dy]
  Matrix<double> xx;           // [dx, dx] sum of (x - mean_x)^T (x - mean_x)
  Matrix<double> xy;           // [dx, dy] sum of (x - mean_x)^T (y - mean_y)
  std::vector<double> yy;      // [dy]     sum of (y - mean_y)^2, column by column

  // Adds rows; x is [T, dx], y is [T, dy], dy may be 0. With `keep` ([T]) only rows where it is not
  // 0. Each block of rows is centred on its own mean and merged by the update of Chan, Golub and
  // LeVeque (1983), so that large means cost no digits. Bit-identical for any number of threads.
  // Throws Error where shapes disagree.
  void add(ThreadPool& pool, MatView<const float> x, MatView<const float> y,
           std::span<const uint8_t> keep = {});
};

// The same rows x with other targets: mean_x and xx are copied from `moments`, which must have seen
// exactly these rows, and only the products with y are summed. O(T dx dy): cheap for a narrow y.
Moments with_targets(ThreadPool& pool, const Moments& moments, MatView<const float> x,
                     MatView<const float> y, std::span<const uint8_t> keep = {});

// A factorisation of (a + lambda I), a symmetric positive semidefinite [n, n].
struct SpdFactor {
  Matrix<double> factor;  // [n, n] Cholesky's lower triangle, or eigenvectors in columns
  std::vector<double> inverse_values;  // [n] eigenvalues inverted; empty where Cholesky served
};

// Cholesky; where a + lambda I is singular to working precision (lambda 0 and fewer rows than
// features, say), eigenvectors, whose null directions then get weight 0 (the minimum-norm solution,
// as a singular value decomposition gives). Throws Error on NaN, Inf or a negative lambda.
SpdFactor factor_spd(MatView<const double> a, double lambda);

// b [n, m] becomes (a + lambda I)^-1 b.
void solve_in_place(ThreadPool& pool, const SpdFactor& factor, MatView<double> b);

// Ridge weights [dx, dy]: (xx + lambda I)^-1 xy. The penalty is added to the sums as they are, not
// to averages: the paper's d = s / (s^2 + lambda). Throws Error without rows, or on NaN or Inf.
Matrix<double> ridge_weights(ThreadPool& pool, const Moments& moments, double lambda);

// The means' part: mean_y - mean_x weight, [dy].
std::vector<double> ridge_bias(const Moments& moments, MatView<const double> weight);

// Sum of squared residuals of each output column ([dy]) when y is predicted as x weight + bias; on
// the moments that were fitted or on others (held-out rows).
std::vector<double> residual_energy(ThreadPool& pool, const Moments& moments,
                                    MatView<const double> weight, std::span<const double> bias);

// The `k` largest eigenvalues of a symmetric matrix, in falling order, with eigenvectors as
// columns. Signs are fixed: the entry of largest magnitude in each column is positive.
struct Eigenpairs {
  std::vector<double> values;  // [k]
  Matrix<double> vectors;      // [n, k]
};
Eigenpairs top_eigenpairs(MatView<const double> a, size_t k);

// Features brought to mean 0 and variance 1, as scikit-learn's StandardScaler does: population
// variance; a feature that is constant up to rounding keeps scale 1.
struct Standardized {
  size_t n = 0;
  std::vector<double> mean;   // [d]
  std::vector<double> scale;  // [d]
  Matrix<double> gram;        // [d, d] sums of products of standardised features: n x correlation
};
Standardized standardize(const Moments& moments);

}  // namespace halflin
