// Per-token losses of a model, whatever stands in its MLPs' places.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "halflin/base/progress.h"
#include "halflin/model/decode.h"
#include "halflin/model/forward.h"

namespace halflin {

// Losses of predictions, and what perplexity follows from.
struct LossSum {
  double sum = 0;    // nats
  size_t count = 0;  // predictions

  void add(std::span<const float> losses, std::span<const size_t> offsets);
  double mean() const { return sum / static_cast<double>(count); }
  double perplexity() const;
};

// What happens to one batch's residual stream between embedding and head.
using LayerRun = std::function<void(size_t batch, MatView<float> residual, Workspace& workspace)>;

// Losses of each batch, [rows] as final_losses gives them. Batches run in parallel, one a thread;
// results do not depend on the number of threads. Throws Error where a loss is not finite.
std::vector<std::vector<float>> run_batches(ThreadPool& pool, const Model& model,
                                            std::span<const Batch> batches, const LayerRun& layers,
                                            Progress& progress);
// The same with all layers, and paths in the MLPs' places, none or one a layer.
std::vector<std::vector<float>> batch_losses(ThreadPool& pool, const Model& model,
                                             std::span<const Batch> batches,
                                             std::span<const MlpPath> paths, Progress& progress);
// The same, each token decoded by itself: what generation computes, with the rounding of weights
// and activations that the decoder does. Batches are of one sequence each.
std::vector<std::vector<float>> decoded_losses(Decoder& decoder, std::span<const Batch> batches,
                                               Progress& progress);

}  // namespace halflin
