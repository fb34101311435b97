// Allocations: which cheap path each token of each layer takes, for the whole model at once, within
// a budget of perplexity.
//
// Fits (joint_fit.h) yield paths and gates that predict harm in nats; one price (price.h) turns
// predictions into routes. The price is calibrated on text of its own; test text is read once, at
// the end.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halflin/measure/fit_store.h"
#include "halflin/measure/healing.h"
#include "halflin/measure/joint_fit.h"
#include "halflin/measure/price.h"
#include "halflin/measure/splits.h"
#include "halflin/measure/statistics.h"

namespace halflin {

// On which activations the layers are fitted, and to what.
enum class Fit {
  kDense,           // the unchanged model's
  kRouted,          // those of the model that is already routed below; own outputs
  kRoutedOriginal,  // the same, to the unchanged model's outputs for the same tokens
  kHealed,          // the best of the others, trained (healing.h)
};
// "dense", "routed", "original", "healed".
std::string fit_name(Fit fit);

struct AllocateOptions {
  double budget_pct = 1;               // percent of perplexity
  std::vector<Fit> fits{Fit::kDense};  // tried in order; routed ones take the price of the first
  MenuOptions menu;
  double trim = 0.03;
  bool whole_layers = false;      // no gates: a path serves all tokens of its layer
  size_t most_paths = kAllPaths;  // of a layer
  bool controls = false;
  std::vector<PathTime> times;  // of the menu (path_time.h), to save time instead of FLOPs
  const Healing* healing = nullptr;
  size_t control_tokens = 10000;                      // of the train split, for the paper's gates
  std::vector<double> multiples{0.25, 0.5, 1, 2, 4};  // of the price, for the Pareto table
  size_t window = 512;
  uint64_t seed = 0;
  size_t draws = 10000;
  IntervalOptions interval;
};

// As many first samples as hold `tokens`: of the train split, those that gradients are taken of.
std::span<const Sample> first_tokens(std::span<const Sample> samples, size_t tokens);

struct ComparedWith {
  std::string name;
  Interval delta_ppl;
  double flops_pct = 0;
};

// Percent of a prompt's time, and of tokens' one by one.
struct TimeSaved {
  double prefill = 0, decode = 0;
};

// One price, on the test split.
struct AllocationPoint {
  double price = 0;
  Interval delta_ppl;  // percent
  Saving saving;
  TimeSaved time;           // from the times of single paths; 0 without these
  size_t sinks_routed = 0;  // token x layer: sinks that took a cheap path
  std::vector<ComparedWith> controls;
  std::optional<Interval> against_control;  // percent, against the healed model without paths
};

struct TriedFit {
  Fit fit = Fit::kDense;
  PriceSearch search;
};

struct AllocateResult {
  std::vector<TriedFit> tried;
  size_t chosen = 0;      // of tried
  PricePoint calibrated;  // of the paths that are kept
  Interval baseline_ppl;  // of the unchanged model, on test
  size_t test_predictions = 0, test_windows = 0;
  size_t test_sinks = 0, test_tokens = 0;
  std::vector<AllocationPoint> points;  // in rising order of price
  size_t own = 0;                       // of points: the calibrated price
  std::vector<std::vector<PlainOption>> layers;
  FittedLayers fitted;
  std::optional<PriceSearch> before_healing;  // one path a layer, at Healing::from_pct
  std::optional<Model> model;                 // healed weights: the allocation is for these
};

// Throws Error where the budget cannot be kept (price.h), Interrupted when `stop` was set.
// `gradients` are of first samples of the train split (joint_fit.h). What `store`, if not null, has
// is not done again.
AllocateResult allocate(ThreadPool& pool, const Model& model, const Splits& splits,
                        const SampledGradients& gradients, const FitStore* store,
                        const AllocateOptions& options, const std::atomic<bool>& stop, bool quiet);

// The result for people and programs: `header` (run.h) and what was found. docs/formats.md.
nlohmann::json allocation_json(const nlohmann::json& header, const AllocateResult& result,
                               const AllocateOptions& options);

}  // namespace halflin
