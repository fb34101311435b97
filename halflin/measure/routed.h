// A model with something in its MLPs' places, run as a whole: its losses, how many tokens took
// which way, and linear surrogates fitted on it as it is.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "halflin/base/progress.h"
#include "halflin/mlp/surrogate.h"
#include "halflin/model/forward.h"

namespace halflin {

struct RoutedLosses {
  std::vector<double> loss;   // [batches] sums in nats, the same that batch_losses gives
  std::vector<double> cheap;  // [layers] share of all tokens that did not take the full MLP
};

// `paths` one a layer, or none for the full MLPs. Batches run in parallel, one a thread; results do
// not depend on the number of threads. Throws Interrupted on `stop`, Error where a loss is not
// finite. Advances `progress` by the tokens.
RoutedLosses routed_losses(ThreadPool& pool, const Model& model, std::span<const MlpPath> paths,
                           std::span<const Batch> batches, const std::atomic<bool>& stop,
                           Progress& progress);

struct FittedSurrogate {
  size_t layer = 0;
  Affine affine;
  double r2 = 0;  // on the rows that it was fitted on
};

// Ridge surrogates (mlp/surrogate.h) of the full MLPs of `layers`, from the inputs that these have
// with `paths` in the model's places. Bit-identical for any number of threads. Throws Interrupted
// on `stop`. Advances `progress` by the tokens.
std::vector<FittedSurrogate> fit_surrogates(ThreadPool& pool, const Model& model,
                                            std::span<const MlpPath> paths,
                                            std::span<const size_t> layers,
                                            std::span<const Batch> batches, double lambda,
                                            const std::atomic<bool>& stop, Progress& progress);

}  // namespace halflin
