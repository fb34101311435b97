// Pruning with refitted output weights: keep some neurons of an MLP and let their output weights
// make up for the others, as far as least squares can.
//
// An MLP is f(x) = a(x) down + b with h neurons a_j. Removing neuron j from a set whose output
// weights are B costs, when all others are refitted at once, |B_j|^2 / H_jj, H the inverse of their
// products a^T a (optimal brain surgeon: Hassibi and Stork, 1993, with one row of B at a time).
// Neurons leave in the order of that cost, a few at a time, so the sets of different sizes are
// nested.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"
#include "halflin/mlp/least_squares.h"

namespace halflin {

// f(x) ~ sum over kept j of a_j(x) down_j + bias.
struct PrunedMlp {
  std::vector<int32_t> kept;  // rising
  Matrix<float> down;         // [kept, d] refitted
  std::vector<float> bias;    // [d] the output bias and what the means make up for
};

// How many of h neurons a share keeps: at least one.
size_t kept_count(double share, size_t h);

// `neurons` are moments of the activations, as x, [h]; `down` is [h, d]; `output_bias` is [d], or
// empty for none. One MLP for each of `shares` of neurons kept, in (0, 1], in their order. `lambda`
// pulls the refitted weights to the old ones. Throws Error on shapes, NaN or Inf.
std::vector<PrunedMlp> prune_neurons(ThreadPool& pool, const Moments& neurons, double lambda,
                                     MatView<const float> down, std::span<const float> output_bias,
                                     std::span<const double> shares);

}  // namespace halflin
