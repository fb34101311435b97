#include "halflin/measure/healing.h"

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/measure/paths.h"
#include "halflin/train/checkpoint.h"

namespace halflin {

namespace {

namespace fs = std::filesystem;

// The option that the path takes, or none.
std::vector<FittedOption> chosen(const FittedLayer& layer, const MlpPath& path) {
  std::vector<FittedOption> one;
  for (const FittedOption& option : layer.options) {
    if (!path.options.empty() && option.packed == path.options.front().path) one.push_back(option);
  }
  return one;
}

// Trains, or takes the state that a run before left in `directory`.
TrainModel run(ThreadPool& pool, const Model& model, Allocation& allocation,
               std::span<const double> costs, const Healing& healing, const fs::path& directory,
               const std::string& identity, const std::atomic<bool>& stop) {
  allocation.model = allocation_model(model.path, healing.checkpoint);
  ensure_writable_directory(directory);
  return heal(pool, healing.checkpoint, model, allocation, costs, healing.text, healing.options,
              {directory, identity}, stop);
}

// The trained weights as a model of the same precision, by way of `directory`.
Model reload(ThreadPool& pool, const TrainModel& trained, const Model& model,
             const Healing& healing, const fs::path& directory) {
  const DType dtype = model.precision == Precision::kBF16 ? DType::kBF16 : DType::kF32;
  save_train_model(trained, healing.checkpoint, directory, dtype);
  return load_model(pool, read_checkpoint(directory.string()), model.precision, model.max_window);
}

}  // namespace

Healed heal_layers(ThreadPool& pool, const Model& model, const FittedLayers& fitted, double price,
                   bool whole_layers, const Healing& healing, const std::atomic<bool>& stop) {
  const std::vector<MlpPath> paths = priced_paths(fitted, price, whole_layers, 1);
  Allocation allocation;
  std::vector<double> costs(fitted.size());
  Healed healed;
  for (size_t l = 0; l < fitted.size(); ++l) {
    healed.layers.push_back(fitted[l]);
    healed.layers[l].options = chosen(fitted[l], paths[l]);
    allocation.layers.emplace_back();
    for (const FittedOption& option : healed.layers[l].options) {
      costs[l] = price * option.saved;
      allocation.layers[l].push_back({copy_path(*option.path), paths[l].options.front().gate});
    }
  }
  {
    const TrainModel trained = run(pool, model, allocation, costs, healing, healing.directory,
                                   fmt::format("healed at {}", price), stop);
    if (healing.options.weights) {
      healed.model = reload(pool, trained, model, healing, healing.model);
    }
  }
  const Model& routed = healed.model ? *healed.model : model;
  for (size_t l = 0; l < fitted.size(); ++l) {
    const MlpWeights weights = read_mlp_weights(routed, l);
    for (size_t i = 0; i < healed.layers[l].options.size(); ++i) {
      PlainOption& from = allocation.layers[l][i];
      FittedOption& option = healed.layers[l].options[i];
      option.packed = std::make_shared<CheapPath>(pack_path(routed, weights, from.path));
      option.path = std::make_shared<PlainPath>(std::move(from.path));
      if (from.gate) option.gate = std::move(*from.gate);
    }
  }
  return healed;
}

Model heal_control(ThreadPool& pool, const Model& model, const Healing& healing,
                   const std::atomic<bool>& stop) {
  const fs::path directory = healing.directory / "control";
  Allocation nothing;
  nothing.layers.resize(model.config.layers);
  const std::vector<double> costs(model.config.layers);
  const TrainModel trained = run(pool, model, nothing, costs, healing, directory, "control", stop);
  return reload(pool, trained, model, healing, directory);
}

}  // namespace halflin
