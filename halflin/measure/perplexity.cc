#include "halflin/measure/perplexity.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"

namespace halflin {

void LossSum::add(std::span<const float> losses, std::span<const size_t> offsets) {
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (size_t t = offsets[s]; t + 1 < offsets[s + 1]; ++t) sum += static_cast<double>(losses[t]);
    count += offsets[s + 1] - offsets[s] - 1;
  }
}

double LossSum::perplexity() const { return std::exp(mean()); }

namespace {

// Finite weights, too, may be so large that activations overflow.
void check_finite(const std::vector<std::vector<float>>& losses, const std::string& model) {
  for (size_t b = 0; b < losses.size(); ++b) {
    for (size_t t = 0; t < losses[b].size(); ++t) {
      if (!std::isfinite(losses[b][t])) {
        fail("{}: batch {}, token {}: expected a finite loss, found {}", model, b, t, losses[b][t]);
      }
    }
  }
}

// Nats that `target` costs.
float loss_of(std::span<const float> logits, int32_t target) {
  const float highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - highest));
  return static_cast<float>(std::log(sum)) + highest - logits[static_cast<size_t>(target)];
}

}  // namespace

std::vector<std::vector<float>> run_batches(ThreadPool& pool, const Model& model,
                                            std::span<const Batch> batches, const LayerRun& layers,
                                            Progress& progress) {
  size_t rows = 0;
  for (const Batch& batch : batches) rows = std::max(rows, batch.rows());
  struct Worker {
    Workspace workspace;
    Matrix<float> residual;
  };
  std::vector<Worker> workers(std::min<size_t>(static_cast<size_t>(pool.size()), batches.size()));
  for (Worker& worker : workers) {
    worker = {Workspace(model, rows), Matrix<float>(rows, model.config.d_model)};
  }
  std::vector<std::vector<float>> losses(batches.size());
  pool.parallel_for(batches.size(), [&](size_t b, int w) {
    Worker& worker = workers[static_cast<size_t>(w)];
    const Batch& batch = batches[b];
    const MatView<float> residual(worker.residual.data(), batch.rows(), model.config.d_model);
    embed(model, batch, residual);
    layers(b, residual, worker.workspace);
    losses[b].resize(batch.rows());
    final_losses(pool, model, batch, residual, worker.workspace, losses[b]);
    progress.advance(static_cast<double>(batch.rows()));
  });
  check_finite(losses, model.path);
  return losses;
}

std::vector<std::vector<float>> batch_losses(ThreadPool& pool, const Model& model,
                                             std::span<const Batch> batches,
                                             std::span<const MlpPath> paths, Progress& progress) {
  const auto layers = [&](size_t b, MatView<float> residual, Workspace& workspace) {
    run_layers(pool, model, 0, batches[b].offsets, residual, workspace, paths);
  };
  return run_batches(pool, model, batches, layers, progress);
}

std::vector<std::vector<float>> decoded_losses(Decoder& decoder, std::span<const Batch> batches,
                                               Progress& progress) {
  std::vector<std::vector<float>> losses;
  for (const Batch& batch : batches) {
    std::vector<float>& own = losses.emplace_back(batch.rows());
    decoder.rewind(0);
    for (size_t t = 0; t + 1 < batch.rows(); ++t) {
      own[t] = loss_of(decoder.step(batch.ids[t]), batch.ids[t + 1]);
      progress.advance(1);
    }
  }
  check_finite(losses, decoder.model().path);
  return losses;
}

}  // namespace halflin
