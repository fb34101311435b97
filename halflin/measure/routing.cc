#include "halflin/measure/routing.h"

#include <algorithm>
#include <cmath>

#include "halflin/measure/perplexity.h"
#include "halflin/measure/walk.h"

namespace halflin {

namespace {

double linear_bytes(const Linear& linear) {
  return linear.empty() ? 0.0 : static_cast<double>(linear.bytes());
}

Cost cost_of(const Mlp& mlp) {
  return {path_flops(mlp), linear_bytes(mlp.gate) + linear_bytes(mlp.up) + linear_bytes(mlp.down)};
}

Cost cost_of(const CheapPath& path) {
  Cost cost{path_flops(path), linear_bytes(path.affine) + linear_bytes(path.low_rank_in) +
                                  linear_bytes(path.low_rank_out)};
  if (path.narrow) cost.bytes += cost_of(*path.narrow).bytes;
  return cost;
}

}  // namespace

std::vector<RoutedBatch> route_batches(ThreadPool& pool, const Model& model,
                                       std::span<const Batch> batches,
                                       std::span<const MlpPath> paths,
                                       const std::atomic<bool>& stop, Progress& progress,
                                       const Router& router) {
  std::vector<RoutedBatch> out(batches.size());
  const LayerRun layers = [&](size_t b, MatView<float> residual, Workspace& workspace) {
    if (stop) throw Interrupted("interrupted");
    out[b].routes = Matrix<uint8_t>(model.config.layers, batches[b].rows());
    for (size_t l = 0; l < model.config.layers; ++l) {
      const Operand x = attention_step(pool, model, l, batches[b].offsets, residual, workspace);
      const std::span<uint8_t> routes = out[b].routes.view().row_span(l);
      choose_routes(pool, paths[l], x, routes);
      if (router) router(b, l, routes);
      apply_routes(pool, model.layers[l].mlp, paths[l], x, routes, /*accumulate=*/true, residual,
                   workspace.mlp);
    }
  };
  std::vector<std::vector<float>> losses = run_batches(pool, model, batches, layers, progress);
  for (size_t b = 0; b < out.size(); ++b) out[b].losses = std::move(losses[b]);
  return out;
}

RouteCosts route_costs(const Model& model, std::span<const MlpPath> paths, size_t window) {
  RouteCosts costs;
  costs.dense.flops = flops_per_token(model.config, window).total();
  for (const Linear& chunk : model.head.chunks) costs.dense.bytes += linear_bytes(chunk);
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const Layer& layer = model.layers[l];
    costs.full.push_back(cost_of(layer.mlp));
    costs.dense.bytes +=
        costs.full.back().bytes + linear_bytes(layer.qkv) + linear_bytes(layer.attention_out);
    costs.option.emplace_back();
    costs.gates.emplace_back();
    Cost gates;
    for (const PathOption& option : paths[l].options) {
      costs.option.back().push_back(cost_of(*option.path));
      if (option.gate) {
        gates.flops += gate_flops(*option.gate);
        gates.bytes += 2 * gate_flops(*option.gate);  // float32: four bytes a multiply-add
      }
      costs.gates.back().push_back(gates);
    }
  }
  return costs;
}

Saving saving(const RouteCosts& costs, std::span<const RoutedBatch> batches) {
  const size_t layers = costs.full.size();
  Saving out;
  double tokens = 0;
  for (const RoutedBatch& batch : batches) tokens += static_cast<double>(batch.routes.cols());
  Cost saved;
  for (size_t l = 0; l < layers; ++l) {
    const size_t options = costs.option[l].size();
    std::vector<double> taken(options + 1, 0.0);
    for (const RoutedBatch& batch : batches) {
      for (const uint8_t route : batch.routes.view().row_span(l)) taken[route] += 1;
    }
    out.rates.emplace_back(options, 0.0);
    for (size_t i = 0; i < options; ++i) {
      saved.flops +=
          taken[i + 1] * (costs.full[l].flops - costs.option[l][i].flops - costs.gates[l][i].flops);
      saved.bytes +=
          taken[i + 1] * (costs.full[l].bytes - costs.option[l][i].bytes - costs.gates[l][i].bytes);
      out.rates[l][i] = taken[i + 1] / tokens;
    }
    if (options == 0) continue;
    saved.flops -= taken[0] * costs.gates[l].back().flops;  // who stays has passed all gates
    saved.bytes -= taken[0] * costs.gates[l].back().bytes;
  }
  out.flops_pct = 100 * saved.flops / (tokens * costs.dense.flops);
  out.bytes_pct = 100 * saved.bytes / (tokens * costs.dense.bytes);
  return out;
}

}  // namespace halflin
