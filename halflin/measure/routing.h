// All layers routed at once: what each token took, what it lost, what it saved.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "halflin/base/progress.h"
#include "halflin/model/forward.h"

namespace halflin {

// Of each batch.
struct RoutedBatch {
  std::vector<float> losses;  // [rows] as final_losses gives them
  Matrix<uint8_t> routes;     // [layers, rows] 0 for the full MLP, else the option, counted from 1
};

// Changes the routes that the gates chose for one batch's rows at one layer. Called from any
// thread.
using Router = std::function<void(size_t batch, size_t layer, std::span<uint8_t> routes)>;

// Runs each batch, one a thread, with the given paths, one a layer; results do not depend on the
// number of threads. Throws Error where a loss is not finite, Interrupted once `stop` is set.
std::vector<RoutedBatch> route_batches(ThreadPool& pool, const Model& model,
                                       std::span<const Batch> batches,
                                       std::span<const MlpPath> paths,
                                       const std::atomic<bool>& stop, Progress& progress,
                                       const Router& router = {});

// What a token's way costs; a dense token's, too, and everything counted (attention, MLPs, head).
struct Cost {
  double flops = 0;
  double bytes = 0;  // of weights read for one token alone
};
struct RouteCosts {
  Cost dense;                             // of one token
  std::vector<Cost> full;                 // [layers] the full MLP
  std::vector<std::vector<Cost>> option;  // [layers][options] without gates
  std::vector<std::vector<Cost>> gates;   // [layers][options] all gates up to this option's
};
// Attention at its average length in windows of `window` tokens.
RouteCosts route_costs(const Model& model, std::span<const MlpPath> paths, size_t window);

// Shares, in percent of what the dense model costs; what the gates cost is taken off.
struct Saving {
  double flops_pct = 0;
  double bytes_pct = 0;
  std::vector<std::vector<double>> rates;  // [layers][options] shares of tokens, in [0, 1]
};
Saving saving(const RouteCosts& costs, std::span<const RoutedBatch> batches);

}  // namespace halflin
