// Healing what was fitted for an allocation (train/heal.h).
#pragma once

#include <filesystem>
#include <optional>

#include "halflin/measure/fitted_layer.h"
#include "halflin/train/heal.h"

namespace halflin {

struct Healing {
  const Checkpoint& checkpoint;
  const Windows& text;  // of none of the splits
  HealOptions options;
  double from_pct = 2;              // what routing costs on calibration text before, in percent
  std::filesystem::path directory;  // where training keeps its state, and the control its model
  std::filesystem::path model;      // where healed weights go, if they train
};

struct Healed {
  FittedLayers layers;         // with the one path of each layer that was healed
  std::optional<Model> model;  // with the healed weights, if they train
};

// Of each layer the path that gains most at the price (fitted_layer.h) and its gate, trained.
// Scores of the train split and of sinks are for the caller to set (joint_fit.h). What training
// left in the directory is not done again.
Healed heal_layers(ThreadPool& pool, const Model& model, const FittedLayers& fitted, double price,
                   bool whole_layers, const Healing& healing, const std::atomic<bool>& stop);

// The control for healed weights: the same steps on the same text with nothing in MLPs' places.
Model heal_control(ThreadPool& pool, const Model& model, const Healing& healing,
                   const std::atomic<bool>& stop);

}  // namespace halflin
