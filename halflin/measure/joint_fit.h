// Fits what an allocation chooses from: for every layer, bottom to top, cheap paths and for each a
// gate that predicts from x what taking it would cost, in nats.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "halflin/measure/fitted_layer.h"
#include "halflin/measure/harm.h"
#include "halflin/measure/sinks.h"

namespace halflin {

enum class FitTarget { kOwn, kOriginal };

struct JointFitOptions {
  MenuOptions menu;
  bool whole_layers = false;  // no gates: paths serve all tokens, sinks too, and are fitted on them
  bool spare_sinks = true;    // no gate's threshold lies below a sink's score
  double trim = 0.03;         // share of tokens with the largest errors that fits leave out
  size_t most_paths = kAllPaths;  // of a layer, at the price
  double price = 0;  // what the layers below are routed at while fitting; 0: not at all
  // Of each path of the menu, where tokens are to save time instead of FLOPs; or none.
  std::vector<PathTime> times{};
  FitTarget target = FitTarget::kOwn;  // what paths should give: f(x), or what the unchanged
                                       // model's MLP gives the same token
};

// Where fitted layers are kept, if anywhere: then a layer that is there is not fitted again.
struct LayerStore {
  std::function<std::optional<FittedLayer>(size_t layer)> load;
  std::function<void(size_t layer, const FittedLayer& fitted)> save;
};

// `gradients` are of the first samples of the train split: what a unit of error energy costs in
// nats, for each layer and path.
FittedLayers joint_fit(ThreadPool& pool, const Model& model, std::span<const Sample> fit,
                       std::span<const Sample> train, const Sinks& fit_sinks,
                       const Sinks& train_sinks, const SampledGradients& gradients, size_t window,
                       const JointFitOptions& options, const LayerStore& store,
                       const std::atomic<bool>& stop, bool quiet);

}  // namespace halflin
