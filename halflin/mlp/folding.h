// Neuron folding: keep the neurons that x cannot predict linearly, fold all others into one affine
// map.
//
// An MLP is f(x) = a(x) down + b with h neurons a_j (after activation and gating). Each neuron is
// regressed on x by ridge, a_j ~ x v_j + c_j. A neuron whose residual carries little energy into
// the output is replaced by its regression, so that the folded neurons together cost one [d, d]
// product: A = sum v_j w_j^T over the folded j, w_j the row of `down` that neuron j writes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"
#include "halflin/mlp/least_squares.h"
#include "halflin/mlp/surrogate.h"

namespace halflin {

// What one fit yields, for every keep fraction.
struct NeuronFit {
  Matrix<double> weight;           // [h, dx] row j is v_j
  std::vector<double> bias;        // [h] c_j
  std::vector<double> energy;      // [h] sum over the fitted rows of the residual's square
  std::vector<double> importance;  // [h] energy x |w_j|^2
  std::vector<int32_t> ranking;    // [h] neurons by falling importance; of equals the lower index
  size_t rows = 0;                 // rows fitted
};

// `moments` are of x and y, where y's columns [first, first + h) are the neurons (other columns,
// such as f itself, are left alone); `down` is [h, d]. Throws Error on shapes, NaN or Inf.
NeuronFit fit_neurons(ThreadPool& pool, const Moments& moments, double lambda,
                      MatView<const float> down, size_t first = 0);

// f(x) ~ sum over kept j of a_j(x) w_j + x folded.weight + folded.bias. The MLP's own output bias
// is inside folded.bias, once.
struct FoldedMlp {
  std::vector<int32_t> kept;  // rising
  Affine folded;              // [dx, d]
};

// Keeps the round(fraction x h) neurons of highest importance. Fraction 0 is the linear surrogate
// (ridge of f on x), fraction 1 is the MLP itself. `output_bias` is [d], or empty for none.
FoldedMlp fold_neurons(ThreadPool& pool, const NeuronFit& fit, MatView<const float> down,
                       std::span<const float> output_bias, double fraction);

}  // namespace halflin
