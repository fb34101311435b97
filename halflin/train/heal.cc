#include "halflin/train/heal.h"

#include "halflin/train/allocation_places.h"
#include "halflin/train/checkpoint.h"

namespace halflin {

namespace {

bool is_gated(const MlpPlace& place) { return place.route == Route::kHard; }

// What trains: cheap paths and gates; with `weights` all else, but for full MLPs that no token
// takes.
void choose_trained(TrainModel& model, bool weights) {
  set_trainable(parameters(model), weights);
  for (TrainLayer& layer : model.layers) {
    MlpPlace& place = layer.mlp;
    if (place.route == Route::kFull) continue;
    set_trainable(parameters(place), true);
    if (weights && is_gated(place)) continue;
    for (TrainAffine* full : {&place.full->gate, &place.full->up, &place.full->down}) {
      Parameter* const both[] = {&full->weight, &full->bias};
      set_trainable(both, false);
    }
  }
}

}  // namespace

TrainModel heal(ThreadPool& pool, const Checkpoint& checkpoint, const Model& original,
                Allocation& allocation, std::span<const double> costs, const Windows& text,
                const HealOptions& options, const TrainFiles& files,
                const std::atomic<bool>& stop) {
  TrainModel model = load_train_model(pool, checkpoint, text.window());
  set_places(model, allocation);
  choose_trained(model, options.weights);
  Workspace workspace(original, options.train.batch * text.window());
  TrainOptions train_options = options.train;
  Objective& objective = train_options.objective;
  objective = {};
  objective.kind = Objective::Kind::kDistill;
  objective.teacher = {.model = &original, .paths = {}, .workspace = &workspace};
  bool gated = false, cheap = false;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    gated = gated || is_gated(model.layers[l].mlp);
    cheap = cheap || model.layers[l].mlp.route != Route::kFull;
    objective.layer_penalties.push_back({.mean_weight = static_cast<float>(costs[l])});
  }
  // The last rule that matches counts.
  const auto set_rate = [&](const char* pattern, double factor) {
    train_options.optimizer.rules.push_back(
        {.pattern = pattern, .rate_factor = factor, .weight_decay = {}});
  };
  if (options.weights) set_rate("*", options.weight_rate);
  if (options.weights && cheap) set_rate("layers.*.mlp.cheap.*", 1);
  if (gated) set_rate("layers.*.mlp.gate.*", options.gate_rate);
  train(pool, model, text, nullptr, train_options, files, stop);
  set_trainable(parameters(model), false);

  // Scores keep their unit: trained gates are measured from their thresholds.
  std::vector<float> thresholds;
  for (const std::vector<PlainOption>& layer : allocation.layers) {
    thresholds.push_back(layer.empty() || !layer.front().gate ? 0 : layer.front().gate->threshold);
  }
  read_places(model, "healed", allocation);
  for (size_t l = 0; l < allocation.layers.size(); ++l) {
    if (allocation.layers[l].empty() || !allocation.layers[l].front().gate) continue;
    Gate& gate = *allocation.layers[l].front().gate;
    gate.bias += thresholds[l];
    gate.threshold = thresholds[l];
  }
  return model;
}

}  // namespace halflin
