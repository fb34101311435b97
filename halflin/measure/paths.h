// Fitted replacements of an MLP as paths that the forward pass can run, in the model's precision.
#pragma once

#include <memory>
#include <span>

#include "halflin/mlp/folding.h"
#include "halflin/mlp/path.h"
#include "halflin/mlp/surrogate.h"
#include "halflin/model/model.h"

namespace halflin {

CheapPath affine_path(const Affine& affine, Precision precision);
CheapPath low_rank_path(const LowRankAffine& affine, Precision precision);
// The neurons kept as a narrower MLP, all others folded into one affine map.
CheapPath folded_path(const Model& model, const MlpWeights& weights, const FoldedMlp& folded);
// The same output for every token.
CheapPath mean_path(std::span<const double> mean);
// The `count` neurons whose outputs vary most; the others at their mean. `moments` are of x and y,
// y's columns [first, first + h) the neurons. The control for folding: pruning without it.
CheapPath narrow_path(const Model& model, const MlpWeights& weights, const Moments& moments,
                      size_t first, size_t count);

}  // namespace halflin
