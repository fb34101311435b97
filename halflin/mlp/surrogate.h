// Linear surrogates g(x) of an MLP f(x) (arXiv 2603.03459), full rank and low rank, from
// moments of (x, f(x)), and their fit in numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"
#include "halflin/mlp/least_squares.h"

namespace halflin {

// y = x weight + bias.
struct Affine {
  Matrix<float> weight;     // [dx, dy]
  std::vector<float> bias;  // [dy]
};

// y = (x down) up + bias.
struct LowRankAffine {
  Matrix<float> down;       // [dx, r]
  Matrix<float> up;         // [r, dy]
  std::vector<float> bias;  // [dy]
};

// Rounds float64 weights and biases to an Affine.
Affine make_affine(MatView<const double> weight, std::span<const double> bias);

// The paper's surrogate: ridge regression on centred data, solved in float64. `lambda` is added to
// the sums of products as they are (the paper: 0.01 on about 10,000 rows).
Affine ridge(ThreadPool& pool, const Moments& moments, double lambda);

// Reduced-rank ridge regression (Mukherjee and Zhu, 2011): of all weights of at most this rank,
// those with the least penalised squared error. The ridge weights W are projected on the top
// eigenvectors of W^T (xx + lambda I) W. A rank above min(dx, dy) is lowered to it; rank 0 is the
// mean output.
LowRankAffine low_rank(ThreadPool& pool, const Moments& moments, double lambda, size_t rank);

// 1 - SSE / SST over all outputs together, SST about the means of these very rows; on the moments
// that were fitted, or on held-out ones. At most 1, negative where the mean would do better; 1 (0)
// where the outputs are constant and (not) met.
double r2(ThreadPool& pool, const Moments& moments, const Affine& affine);
double r2(ThreadPool& pool, const Moments& moments, const LowRankAffine& affine);

// |a_t - b_t|^2 of each row ([T]): the error energy of a surrogate's outputs against the MLP's.
std::vector<double> error_energy(ThreadPool& pool, MatView<const float> a, MatView<const float> b);

// 1 for each row to keep when the ceil(fraction x T) rows of largest energy are dropped, NaN first
// (of equals the later): for the trimmed fit, where tokens that no surrogate will serve have no
// say.
std::vector<uint8_t> trim_mask(std::span<const double> energy, double fraction);

}  // namespace halflin
