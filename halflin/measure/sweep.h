// The sweep: what replacing one layer's MLP costs, for each layer, in one walk.
//
// Measuring layer l needs the residual stream that enters layer l. The walk goes from bottom to top
// and keeps one stream a batch, so the prefix is computed once for all layers and variants; each
// variant then runs layers l + 1 ... and the head.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/base/progress.h"
#include "halflin/measure/harm.h"
#include "halflin/measure/splits.h"
#include "halflin/measure/statistics.h"
#include "halflin/measure/walk.h"
#include "halflin/mlp/gate.h"

namespace halflin {

struct SweepOptions {
  std::vector<size_t> layers;         // rising
  std::vector<std::string> gates;     // of "linear", "b1", "b3", "b6", "harm"
  double ridge = 0.01;                // lambda of surrogates and folding, on sums as they are
  std::vector<double> rates;          // shares of linear tokens at which gates are compared, too
  std::vector<double> fold;           // keep fractions of neuron folding
  bool controls = false;              // random and oracle routing; mean, skip, low-rank, narrow
  size_t rank = 0;                    // of the low-rank control; 0: a quarter of the width
  double budget_pct = 1.0;            // the harm gate's own threshold: predicted cost in percent
  double skip_gates_above_pct = 500;  // all-linear cost beyond which the paper trains no gate
  uint64_t seed = 0;
  size_t draws = 10000;
  IntervalOptions interval;

  bool paper_gates() const;  // any of the gates that need loss differences
  bool harm_gate() const;
};

// One way of filling the MLP's place, as measured on the test split.
struct VariantResult {
  std::string name;
  double rate = -1;              // the share of linear tokens that was asked for; < 0: none was
  double threshold = 0;          // on the gate's score
  double flops_pct = 0;          // FLOPs of the whole-layer path, percent of the full MLP's
  std::vector<double> loss{};    // [test sequences] sums of losses, nats
  std::vector<double> linear{};  // [test sequences] tokens that took the cheap path
};

struct GateResult {
  std::string name;
  size_t params = 0;
  VariantResult own{};                   // at its own threshold
  std::vector<VariantResult> at_rate{};  // at SweepOptions::rates
  Interval auc{};  // held out: score against "delta <= its median" on the test split
};

struct LayerResult {
  size_t layer = 0;
  Interval r2;                // of the surrogate, on test; about the mean of the fit split
  Interval r2_without_sinks;  // the same without the tokens counted in `sinks`
  size_t sinks = 0;        // test tokens whose MLP output is over 20 x the fit split's median norm
  DeltaStats train_delta;  // count 0 where no gate needed it
  DeltaStats test_delta;
  VariantResult all_linear;
  std::optional<LayerHarm> harm;                 // of the surrogate, predicted on the harm split
  std::vector<double> all_linear_without_sinks;  // [test sequences] losses; empty without `harm`
  std::vector<GateResult> gates;
  std::string no_gates_reason;
  std::vector<VariantResult> folds;     // `rate` is the keep fraction
  std::vector<VariantResult> controls;  // whole layer
  std::vector<VariantResult> routing_controls;
  // Of each token of the test split, in order: what a token map or a later analysis needs.
  std::vector<float> delta;                // nats; NaN for the last token of a sequence
  std::vector<float> error_energy;         // |g(x) - f(x)|^2
  std::vector<std::vector<float>> scores;  // [gates][tokens]
};

// Losses of the dense model on the test split, and everything that all layers share.
struct SweepBaseline {
  std::vector<double> loss;         // [test sequences]
  std::vector<double> predictions;  // [test sequences]
  std::vector<double> tokens;       // [test sequences]
  // Of each token of the test split, in order.
  std::vector<float> token_id;
  std::vector<float> token_sequence;  // which test sequence it is in
  std::vector<float> token_loss;      // of predicting the next one; 0 for the last of a sequence
  BootstrapDraws draws;               // over test sequences
  BootstrapDraws harm_draws;          // over the harm split's; none where there is no such split
};

// Calls back with each measured layer, in order. `finished` says which layers need no measuring
// because an earlier run has them. `stop`, when it turns true, ends the walk with Interrupted at
// the next batch. `gradients`, of splits.harm and the layers to be measured, are what
// harm is predicted from; none: it is not predicted.
void sweep(ThreadPool& pool, const Model& model, const Splits& splits, const SweepOptions& options,
           const std::function<bool(size_t layer)>& finished,
           const std::function<void(const SweepBaseline&)>& baseline_ready,
           const std::function<void(const LayerResult&)>& layer_ready,
           const std::atomic<bool>& stop, bool quiet, const SampledGradients* gradients = nullptr);

}  // namespace halflin
