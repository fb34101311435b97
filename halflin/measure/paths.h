// Fitted replacements of an MLP as paths that the forward pass can run, in the model's precision.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halflin/mlp/allocation.h"
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

// Which model that is, as an allocation names it; `name` is the model as the user named it.
AllocationModel allocation_model(const std::string& name, const Checkpoint& checkpoint);
// An allocation's paths, packed in the model's precision: one MlpPath a layer.
CheapPath pack_path(const Model& model, const MlpWeights& weights, const PlainPath& path);
std::vector<MlpPath> pack_allocation(ThreadPool& pool, const Model& model,
                                     const Allocation& allocation);
// Reads an allocation file and checks that it is for this model. Throws Error as load_allocation
// and check_allocation_model do.
Allocation load_allocation_for(const std::string& path, const std::string& name,
                               const Checkpoint& checkpoint);

}  // namespace halflin
