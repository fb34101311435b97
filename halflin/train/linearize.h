// Linearising a model while it is fine-tuned (arXiv 2603.03459; docs/method.md, "Linearise"): MLPs
// are replaced by frozen surrogates, a few at a time, and the rest trains on; then small gates may
// learn which tokens should take the full MLP after all. And the control: the same training with
// nothing replaced.
//
// A run is a row of stages. Each leaves its model and its figures on disk; a run that was stopped
// goes on from the last finished stage, and from the saved state of the one that was under way.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halflin/train/linearize_texts.h"
#include "halflin/train/run.h"

namespace halflin {

// What a directory of a linearised model holds beside the model.
inline constexpr const char* kAllocationName = "allocation.safetensors";

// First some layers (or none) become linear, then all else trains.
struct LinearizeStage {
  std::vector<size_t> layers;
  size_t steps = 0;
};

// The paper's phase 2: gates d -> units -> 1 that are the only thing trained.
struct GateTraining {
  size_t units = 32;
  float bias = -3.f;          // of the output at the start: p = 0.05, nearly all linear
  double penalty = 0.1;       // on the mean of p, over tokens and layers
  double penalty_from = 0.1;  // share of the steps before it sets in
  TrainOptions train;
};

struct LinearizeRun {
  ThreadPool& pool;
  const Checkpoint& original;
  const LinearizeTexts& texts;
  std::filesystem::path out;
  std::string identity;  // of settings, texts and model
  std::vector<LinearizeStage> stages;
  double ridge = 0.01;
  // Of every stage; steps and seed are set for each. A teacher is the original model and is set
  // here, too, for Objective::Kind::kDistill.
  TrainOptions train;
  bool keep_stages = false;  // keep the model of every stage, not of the last alone
  const std::atomic<bool>& stop;
  bool quiet = false;
};

// The layers from the middle of the list outward, the lower one first: 10 ... 14 become 12, 11, 13,
// 10, 14.
std::vector<size_t> from_center(std::vector<size_t> layers);

// The layers by what it costs to replace each alone in the original model, cheapest first, measured
// on the calibration windows: [{"layer", "mean_loss"}], kept in <out>/order.json.
nlohmann::json cheapest_order(const LinearizeRun& run, const std::vector<size_t>& layers);

// Figures of a model on the first `texts` held-out texts, with an allocation or without:
// {"loss": {<text>: [sums of each window, nats]}, "linear": {<text>: [share of each layer]}}.
nlohmann::json measure_model(const LinearizeRun& run, const std::string& model,
                             const std::filesystem::path& allocation, size_t texts);
// Of the original model on all texts, kept in <out>/original.json.
nlohmann::json measure_original(const LinearizeRun& run);

// Which of the two models goes through the stages, and where it is kept.
struct LinearizeChain {
  bool linearize = true;            // false: the control
  std::filesystem::path directory;  // figures, logs and states of stages
  std::filesystem::path final;      // where the last stage's model goes
};
// Takes the stages that are still to be taken, calls `done` with the figures of each stage,
// finished ones included, and returns them all: {"stage", "layers", "steps", "r2_fit", "replaced"
// (as measure_model, before training), "tuned" (after)}. Throws Interrupted on `stop`, Error as
// train() does.
std::vector<nlohmann::json> run_stages(const LinearizeRun& run, const LinearizeChain& chain,
                                       const std::function<void(const nlohmann::json&)>& done);

// Trains gates for the linear layers of the model in run.out, soft (a blend) or hard
// (straight-through), all else frozen, and writes <out>/allocation-soft.safetensors or
// allocation-hard.safetensors. Returns the figures, which <out>/gates-<route>.json keeps: "hard"
// (as measure_model: each token takes one path), and of soft gates "soft" ({"loss", "gate_mean"} by
// text), the blend.
nlohmann::json train_gates(const LinearizeRun& run, const GateTraining& gates, Route route);

}  // namespace halflin
