#include "halflin/measure/healing.h"

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/measure/paths.h"
#include "halflin/train/checkpoint.h"

namespace halflin {

namespace {

namespace fs = std::filesystem;

const FittedOption* option_of(const FittedLayer& layer, const MlpPath& path) {
  for (const FittedOption& option : layer.options) {
    if (!path.options.empty() && option.packed == path.options.front().path) return &option;
  }
  return nullptr;
}

// What is known of an option, but for its path and its gate.
FittedOption figures_of(const FittedOption& from) {
  FittedOption option;
  option.gate = from.gate;
  option.kind = from.kind;
  option.kept = from.kept;
  option.saved = from.saved;
  option.time = from.time;
  option.gate_cost = from.gate_cost;
  option.fixed_cost = from.fixed_cost;
  option.energy = from.energy;
  option.energy_all = from.energy_all;
  option.scale = from.scale;
  option.r2 = from.r2;
  return option;
}

// What controls are made of stays as it was fitted.
FittedLayer without_options(const FittedLayer& from) {
  FittedLayer layer;
  layer.scale = from.scale;
  layer.linear = from.linear;
  layer.plain_linear = from.plain_linear;
  layer.linear_energy = from.linear_energy;
  layer.neuron_mean = from.neuron_mean;
  layer.neuron_energy = from.neuron_energy;
  for (const FittedOption& option : from.options) {
    if (option.packed == from.linear) {
      layer.plain_linear = std::make_shared<PlainPath>(copy_path(option.path));
    }
  }
  return layer;
}

TrainModel run(ThreadPool& pool, const Model& model, Allocation& allocation,
               std::span<const double> costs, const Healing& healing, const fs::path& directory,
               const std::string& identity, const std::atomic<bool>& stop) {
  ensure_writable_directory(directory);
  return heal(pool, healing.checkpoint, model, allocation, costs, healing.text, healing.options,
              {directory, identity}, stop);
}

DType dtype_of(const Model& model) {
  return model.precision == Precision::kBF16 ? DType::kBF16 : DType::kF32;
}

Model load(ThreadPool& pool, const Model& as, const fs::path& directory) {
  return load_model(pool, read_checkpoint(directory.string()), as.precision, as.max_window);
}

}  // namespace

std::string healed_fit(const Healing& healing) {
  return fmt::format("healed-{:g}", healing.from_pct);
}

Healed heal_layers(ThreadPool& pool, const Model& model, const FittedLayers& fitted, double price,
                   bool whole_layers, const Healing& healing, const FitStore* store,
                   const std::atomic<bool>& stop) {
  const bool weights = healing.options.weights;
  const std::string fit = healed_fit(healing);
  const std::vector<MlpPath> paths = priced_paths(fitted, price, whole_layers, 1);
  Allocation allocation;
  allocation.model = allocation_model(model.path, healing.checkpoint);
  std::vector<double> costs;
  Healed healed;
  for (size_t l = 0; l < fitted.size(); ++l) {
    healed.layers.push_back(without_options(fitted[l]));
    allocation.layers.emplace_back();
    costs.push_back(0);
    const FittedOption* option = option_of(fitted[l], paths[l]);
    if (option == nullptr) continue;
    costs[l] = price * option->saved;
    healed.layers[l].options.push_back(figures_of(*option));
    allocation.layers[l].push_back({copy_path(option->path), paths[l].options.front().gate});
  }

  const fs::path done = healing.directory / "done";
  if (!fs::exists(done)) {
    const TrainModel trained = run(pool, model, allocation, costs, healing, healing.directory,
                                   fmt::format("healed at {}", price), stop);
    if (weights) {
      save_train_model(trained, healing.checkpoint, healing.model, dtype_of(model));
    }
  }
  if (weights) healed.model = load(pool, model, healing.model);
  const Model& routed = healed.model ? *healed.model : model;
  for (size_t l = 0; l < fitted.size(); ++l) {
    FittedLayer& layer = healed.layers[l];
    if (fs::exists(done)) {
      layer = store->layer(routed, fit, l).value();
      continue;
    }
    const MlpWeights mlp = read_mlp_weights(routed, l);
    for (size_t i = 0; i < layer.options.size(); ++i) {
      PlainOption& from = allocation.layers[l][i];
      FittedOption& option = layer.options[i];
      option.packed = std::make_shared<CheapPath>(pack_path(routed, mlp, from.path));
      option.path = std::move(from.path);
      if (!whole_layers) option.gate = std::move(*from.gate);
    }
    if (store != nullptr) store->save_layer(routed, fit, l, layer);
  }
  if (store != nullptr && !fs::exists(done)) write_file_atomically(done, "");
  return healed;
}

Model heal_control(ThreadPool& pool, const Model& model, const Healing& healing,
                   const std::atomic<bool>& stop) {
  const fs::path directory = healing.directory / "control";
  if (!fs::exists(directory / "model.safetensors")) {
    Allocation nothing;
    nothing.model = allocation_model(model.path, healing.checkpoint);
    nothing.layers.resize(model.config.layers);
    const std::vector<double> costs(model.config.layers);
    const TrainModel trained =
        run(pool, model, nothing, costs, healing, directory, "control", stop);
    save_train_model(trained, healing.checkpoint, directory, dtype_of(model));
  }
  return load(pool, model, directory);
}

}  // namespace halflin
