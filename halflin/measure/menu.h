// The cheap paths that an allocation may choose from at one layer, fitted together from one set of
// moments.
#pragma once

#include <span>
#include <vector>

#include "halflin/base/threads.h"
#include "halflin/mlp/allocation.h"
#include "halflin/mlp/least_squares.h"
#include "halflin/model/model.h"

namespace halflin {

struct MenuOptions {
  bool linear = true;
  // Shares of neurons kept, chosen and their output weights refitted as in mlp/pruning.h: beside an
  // affine map of x, which takes over the others, and alone.
  std::vector<double> folded{};
  std::vector<double> pruned{};
  std::vector<size_t> ranks{};  // of low-rank surrogates
  double ridge = 0.01;          // penalty, on sums as they are
};

// FLOPs of one token.
double plain_flops(const PlainPath& path, size_t d_model, bool gated_mlp);

// The paths in order of rising FLOPs. `moments` are of rows (x | neurons), as x, with the targets
// that the paths should give as y, [d]; without targets they are the MLP's own outputs.
std::vector<PlainPath> fit_menu(ThreadPool& pool, const MlpWeights& weights, const Moments& moments,
                                const MenuOptions& options);

// Paths of the same kinds and sizes, in the same order, all weights 0.
std::vector<PlainPath> menu_shapes(const MenuOptions& options, size_t d_model, size_t d_mlp,
                                   bool gated_mlp);

// The control for pruning with refitted outputs: the `kept` neurons with the model's own output
// weights, the others at their mean. `mean` is of the neurons, [h].
PlainPath mean_pruned_path(const MlpWeights& weights, std::span<const double> mean,
                           std::vector<int32_t> kept);

}  // namespace halflin
