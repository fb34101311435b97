#include "halflin/measure/routed.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/measure/perplexity.h"
#include "halflin/measure/walk.h"

namespace halflin {

namespace {

const MlpPath& path_of(std::span<const MlpPath> paths, size_t layer) {
  static const MlpPath full;
  return paths.empty() ? full : paths[layer];
}

size_t most_rows(std::span<const Batch> batches) {
  size_t rows = 0;
  for (const Batch& batch : batches) rows = std::max(rows, batch.rows());
  return rows;
}

}  // namespace

RoutedLosses routed_losses(ThreadPool& pool, const Model& model, std::span<const MlpPath> paths,
                           std::span<const Batch> batches, const std::atomic<bool>& stop,
                           Progress& progress) {
  const size_t layers = model.config.layers;
  const size_t rows = most_rows(batches);
  struct Worker {
    Workspace workspace;
    Matrix<float> residual;
    std::vector<uint8_t> route;
    std::vector<float> losses;
  };
  std::vector<Worker> workers(std::min(static_cast<size_t>(pool.size()), batches.size()));
  for (Worker& worker : workers) {
    worker = {Workspace(model, rows), Matrix<float>(rows, model.config.d_model), {}, {}};
  }
  RoutedLosses result;
  result.loss.resize(batches.size());
  Matrix<double> cheap(batches.size(), layers);  // tokens
  pool.parallel_for(batches.size(), [&](size_t b, int w) {
    if (stop) throw Interrupted("interrupted");
    Worker& worker = workers[static_cast<size_t>(w)];
    const Batch& batch = batches[b];
    const MatView<float> residual(worker.residual.data(), batch.rows(), model.config.d_model);
    worker.route.resize(batch.rows());
    worker.losses.resize(batch.rows());
    embed(model, batch, residual);
    for (size_t l = 0; l < layers; ++l) {
      const Operand x = attention_step(pool, model, l, batch.offsets, residual, worker.workspace);
      apply_path(pool, model.layers[l].mlp, path_of(paths, l), x, /*accumulate=*/true, residual,
                 worker.workspace.mlp, worker.route);
      cheap(b, l) = static_cast<double>(batch.rows()) -
                    static_cast<double>(std::count(worker.route.begin(), worker.route.end(), 0));
    }
    final_losses(pool, model, batch, residual, worker.workspace, worker.losses);
    LossSum sum;
    sum.add(worker.losses, batch.offsets);
    if (!std::isfinite(sum.sum)) {
      fail("{}: window {}: expected a finite loss, found {}", model.path, b, sum.sum);
    }
    result.loss[b] = sum.sum;
    progress.advance(static_cast<double>(batch.rows()));
  });
  double tokens = 0;
  for (const Batch& batch : batches) tokens += static_cast<double>(batch.rows());
  result.cheap.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t b = 0; b < batches.size(); ++b) result.cheap[l] += cheap(b, l);
    result.cheap[l] /= std::max(tokens, 1.0);
  }
  return result;
}

std::vector<FittedSurrogate> fit_surrogates(ThreadPool& pool, const Model& model,
                                            std::span<const MlpPath> paths,
                                            std::span<const size_t> layers,
                                            std::span<const Batch> batches, double lambda,
                                            const std::atomic<bool>& stop, Progress& progress) {
  const size_t d = model.config.d_model;
  const size_t rows = most_rows(batches);
  const size_t end = layers.empty() ? 0 : *std::ranges::max_element(layers) + 1;
  std::vector<Moments> moments;
  for (size_t i = 0; i < layers.size(); ++i) moments.emplace_back(d, d);
  Workspace workspace(model, rows);
  Matrix<float> stream(rows, d), inputs(rows, d), outputs(rows, d);
  // One batch after another, so that the sums have an order.
  for (const Batch& batch : batches) {
    if (stop) throw Interrupted("interrupted");
    const MatView<float> residual(stream.data(), batch.rows(), d);
    const MatView<float> x32(inputs.data(), batch.rows(), d);
    const MatView<float> full(outputs.data(), batch.rows(), d);
    embed(model, batch, residual);
    for (size_t l = 0; l < end; ++l) {
      const Operand x = attention_step(pool, model, l, batch.offsets, residual, workspace);
      const auto wanted = std::ranges::find(layers, l);
      if (wanted != layers.end()) {
        to_float32(x, x32);
        apply_mlp(pool, model.layers[l].mlp, x, /*accumulate=*/false, full, workspace.mlp);
        moments[static_cast<size_t>(wanted - layers.begin())].add(pool, x32, full);
      }
      if (l + 1 == end) break;
      apply_path(pool, model.layers[l].mlp, path_of(paths, l), x, /*accumulate=*/true, residual,
                 workspace.mlp);
    }
    progress.advance(static_cast<double>(batch.rows()));
  }
  std::vector<FittedSurrogate> fitted;
  for (size_t i = 0; i < layers.size(); ++i) {
    Affine affine = ridge(pool, moments[i], lambda);
    const double fit = r2(pool, moments[i], affine);
    fitted.push_back({layers[i], std::move(affine), fit});
  }
  return fitted;
}

}  // namespace halflin
