// Healing a routed model: its cheap paths and gates, or all weights, trained to predict what the
// unchanged model predicts (KL divergence), so that text of another kind than the model's own does
// not pull it along.
#pragma once

#include <span>

#include "halflin/mlp/allocation.h"
#include "halflin/train/run.h"

namespace halflin {

struct HealOptions {
  TrainOptions train;        // its objective is set here
  double gate_rate = 0.1;    // learning rate of gates, as a share of the paths'
  double weight_rate = 0.1;  // and of the model's own weights
  bool weights = false;      // whether these train at all
};

// Trains `allocation`, of at most one option a layer, in place, and returns the model as it is
// then. The loss is that of the teacher `original`, plus for each gated layer costs[layer] (nats a
// token: price x share of all that a token costs) x the mean chance of the full MLP: gates pay for
// what they do not save. Gradients of gates are straight-through, as if their route were a blend.
// An allocation without options trains the model alone: the control. Errors as train().
TrainModel heal(ThreadPool& pool, const Checkpoint& checkpoint, const Model& original,
                Allocation& allocation, std::span<const double> costs, const Windows& text,
                const HealOptions& options, const TrainFiles& files, const std::atomic<bool>& stop);

}  // namespace halflin
