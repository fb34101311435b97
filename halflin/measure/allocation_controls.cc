#include "halflin/measure/allocation_controls.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "halflin/base/random.h"
#include "halflin/measure/paths.h"

namespace halflin {

namespace {

// Percent of all FLOPs that a layer saves when all of its tokens take `path`.
double saved_pct(const Model& model, size_t layer, const CheapPath& path, size_t window) {
  return 100 * (path_flops(model.layers[layer].mlp) - path_flops(path)) /
         flops_per_token(model.config, window).total();
}

double sink_share(const Sinks& sinks) {
  size_t tokens = 0;
  for (const auto& batch : sinks.token) tokens += batch.size();
  return tokens == 0 ? 0 : static_cast<double>(sinks.count) / static_cast<double>(tokens);
}

Router spare(const Sinks& sinks) {
  return [&sinks](size_t b, size_t, std::span<uint8_t> routes) {
    for (size_t t = 0; t < routes.size(); ++t) {
      if (sinks.token[b][t] != 0) routes[t] = 0;
    }
  };
}

MlpPath always(std::shared_ptr<const CheapPath> path) {
  MlpPath out;
  out.options.push_back({std::move(path), {}});
  return out;
}

}  // namespace

Control random_control(std::span<const MlpPath> paths,
                       const std::vector<std::vector<double>>& rates, const Sinks& sinks,
                       uint64_t seed) {
  const double others = 1 - sink_share(sinks);
  return {"random routing", {paths.begin(), paths.end()}, [=, &sinks](size_t b, size_t l, auto to) {
            Random random(seed, fmt::format("random routing, layer {}, batch {}", l, b));
            for (size_t t = 0; t < to.size(); ++t) {
              double left = random.uniform() * others;
              to[t] = 0;
              if (sinks.token[b][t] != 0) continue;
              for (size_t i = 0; i < rates[l].size() && to[t] == 0; ++i) {
                if (left < rates[l][i]) to[t] = static_cast<uint8_t>(i + 1);
                left -= rates[l][i];
              }
            }
          }};
}

Control whole_linear_control(const Model& model, const FittedLayers& layers, double flops_pct,
                             size_t window, const Sinks& sinks, uint64_t seed) {
  std::vector<size_t> order(layers.size());
  std::iota(order.begin(), order.end(), 0);
  const auto harm = [&](size_t l) { return layers[l].scale * layers[l].linear_energy; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return harm(a) < harm(b); });
  std::vector<MlpPath> paths(layers.size());
  std::vector<std::vector<double>> rates(layers.size());
  const double others = 1 - sink_share(sinks);
  double left = flops_pct;
  for (const size_t l : order) {
    const double whole = saved_pct(model, l, *layers[l].linear, window) * others;
    if (left <= 0 || whole <= 0) continue;
    paths[l] = always(layers[l].linear);
    rates[l] = {std::min(1.0, left / whole) * others};
    left -= whole;
  }
  Control control = random_control(paths, rates, sinks, seed);
  control.name = "whole layers linear";
  return control;
}

Control pruned_control(const Model& model, const FittedLayers& layers, double flops_pct,
                       size_t window, const Sinks& sinks) {
  const size_t h = model.config.d_mlp;
  const double total = flops_per_token(model.config, window).total();
  const double neuron = path_flops(model.layers[0].mlp) / static_cast<double>(h);
  const double wanted = flops_pct / 100 * total / neuron / (1 - sink_share(sinks));
  std::vector<std::pair<double, std::pair<size_t, size_t>>> order;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t j = 0; j < h; ++j) {
      order.push_back({layers[l].scale * layers[l].neuron_energy[j], {l, j}});
    }
  }
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), static_cast<size_t>(std::lround(std::max(wanted, 0.0)))));
  std::vector<std::vector<uint8_t>> gone(layers.size(), std::vector<uint8_t>(h, 0));
  for (const auto& [harm, place] : order) gone[place.first][place.second] = 1;

  std::vector<MlpPath> paths(layers.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<int32_t> kept;
    for (size_t j = 0; j < h; ++j) {
      if (gone[l][j] == 0) kept.push_back(static_cast<int32_t>(j));
    }
    if (kept.size() == h) continue;
    const MlpWeights weights = read_mlp_weights(model, l);
    const PlainPath path = mean_pruned_path(weights, layers[l].neuron_mean, std::move(kept));
    paths[l] = always(std::make_shared<CheapPath>(pack_path(model, weights, path)));
  }
  return {"pruned, not folded", std::move(paths), spare(sinks)};
}

JointPaperGates train_joint_paper_gates(ThreadPool& pool, const Model& model,
                                        const FittedLayers& layers, std::span<const Sample> train,
                                        std::span<const Sample> calibration,
                                        const Sinks& train_sinks, const Sinks& calibration_sinks,
                                        const std::atomic<bool>& stop, bool quiet) {
  const size_t d = model.config.d_model;
  const size_t count = model.config.layers;
  std::vector<Stream> streams = make_streams(model, train);
  std::vector<Stream> held_out = make_streams(model, calibration);
  const auto rows = static_cast<double>(count_rows(train));
  const auto layer_count = static_cast<double>(count);
  Progress progress(
      "paper's gates",
      rows * (1 + layer_count * (1 + (layer_count - 1) / 2 + head_units(model.config))) +
          static_cast<double>(count_rows(calibration)) * layer_count,
      quiet);
  set_base(pool, model, streams, progress);
  std::vector<WalkWorker> workers;
  workers.reserve(static_cast<size_t>(pool.size()));
  for (int w = 0; w < pool.size(); ++w) {
    workers.emplace_back(model, std::max(most_rows(train), most_rows(calibration)));
  }
  WalkContext context{pool, model, workers, stop, progress};
  JointPaperGates out;
  for (size_t l = 0; l < count; ++l) {
    std::vector<Matrix<float>> inputs(streams.size());
    std::vector<std::vector<float>> deltas(streams.size());
    each_batch(context, streams, l,
               [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
                 const size_t n = stream.residual.rows();
                 inputs[b] = Matrix<float>(n, d);
                 std::copy_n(view.x32.data, n * d, inputs[b].data());
                 apply_cheap(pool, *layers[l].linear, view.x, false, view.cheap,
                             worker.workspace.mlp);
                 for (size_t t = 0; t < n; ++t) {
                   if (train_sinks.token[b][t] != 0) {
                     std::copy_n(view.full.row(t), d, view.cheap.row(t));
                   }
                 }
                 set_residual(stream, view.cheap, worker);
                 const std::span<const float> losses = suffix_losses(context, stream, worker, l);
                 for (size_t t = 0; t < n; ++t) {
                   const bool counts = stream.sample->use[t] != 0 && train_sinks.token[b][t] == 0;
                   deltas[b].push_back(counts ? losses[t] - stream.base[t] : std::nanf(""));
                 }
               });
    Matrix<float> x(count_rows(train), d);
    std::vector<float> delta;
    for (size_t b = 0; b < inputs.size(); ++b) {
      std::copy_n(inputs[b].data(), inputs[b].size(), x.row(delta.size()));
      delta.insert(delta.end(), deltas[b].begin(), deltas[b].end());
    }
    PaperGates trained =
        train_paper_gates(pool, x.view(), delta, std::vector<std::string>{"linear"});
    out.gates.push_back(trained.gates.empty() ? Gate() : std::move(trained.gates.front()));

    std::vector<std::vector<float>> scores(held_out.size());
    each_batch(context, held_out, l, [&](size_t b, Stream&, WalkWorker&, const BatchView& view) {
      if (out.gates.back().weight.empty()) return;
      const std::vector<float> all = gate_scores(pool, out.gates.back(), view.x32);
      for (size_t t = 0; t < all.size(); ++t) {
        if (calibration_sinks.token[b][t] == 0) scores[b].push_back(all[t]);
      }
    });
    out.scores.emplace_back();
    for (const auto& part : scores) {
      out.scores.back().insert(out.scores.back().end(), part.begin(), part.end());
    }
  }
  return out;
}

Control paper_control(const Model& model, const FittedLayers& layers, const JointPaperGates& gates,
                      double flops_pct, size_t window, const Sinks& sinks) {
  // Every calibration token of every layer, from the most to the least probably fine.
  std::vector<std::pair<float, double>> order;
  for (size_t l = 0; l < layers.size(); ++l) {
    const double one = saved_pct(model, l, *layers[l].linear, window) /
                       static_cast<double>(std::max<size_t>(gates.scores[l].size(), 1));
    for (const float score : gates.scores[l]) order.emplace_back(-score, one);
  }
  std::sort(order.begin(), order.end());
  double saved = 0;
  size_t taken = 0;
  while (taken < order.size() && saved < flops_pct) saved += order[taken++].second;
  const float threshold =
      taken < order.size() ? -order[taken].first : std::numeric_limits<float>::lowest();

  Control control{"paper's gates", std::vector<MlpPath>(layers.size()), spare(sinks)};
  for (size_t l = 0; l < layers.size(); ++l) {
    if (gates.gates[l].weight.empty()) continue;
    Gate gate = gates.gates[l];
    gate.threshold = threshold;
    control.paths[l].options.push_back({layers[l].linear, std::move(gate)});
  }
  return control;
}

}  // namespace halflin
