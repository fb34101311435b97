#include "halflin/train/linearize.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/routed.h"
#include "halflin/measure/walk.h"
#include "halflin/train/allocation_places.h"
#include "halflin/train/checkpoint.h"

namespace halflin {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double count_tokens(std::span<const Batch> batches) {
  double tokens = 0;
  for (const Batch& batch : batches) tokens += static_cast<double>(batch.rows());
  return tokens;
}

size_t longest(const LinearizeTexts& texts) {
  size_t rows = 2;
  const auto look = [&](std::span<const Batch> batches) {
    for (const Batch& batch : batches) rows = std::max(rows, batch.rows());
  };
  look(texts.fit);
  look(texts.calibration);
  for (const HeldOutText& text : texts.held_out) look(text.windows);
  return rows;
}

// A model as measuring runs it, with what stands in its MLPs' places.
struct RoutedModel {
  Model model;
  std::vector<MlpPath> paths;
};
RoutedModel load_routed(const LinearizeRun& run, const std::string& name,
                        const Allocation* allocation) {
  RoutedModel routed{
      load_model(run.pool, read_checkpoint(name), run.train.precision, longest(run.texts)), {}};
  if (allocation != nullptr) routed.paths = pack_allocation(run.pool, routed.model, *allocation);
  return routed;
}

json measure(const LinearizeRun& run, const RoutedModel& routed, size_t texts) {
  json found;
  for (size_t i = 0; i < std::min(texts, run.texts.held_out.size()); ++i) {
    const HeldOutText& text = run.texts.held_out[i];
    Progress progress("measure", count_tokens(text.windows), run.quiet);
    const RoutedLosses losses =
        routed_losses(run.pool, routed.model, routed.paths, text.windows, run.stop, progress);
    found["loss"][text.name] = losses.loss;
    found["linear"][text.name] = losses.cheap;
  }
  return found;
}

void write_json(const fs::path& path, const json& contents) {
  write_file_atomically(path, contents.dump() + "\n");
}
json read_json(const fs::path& path) { return parse_json(read_file(path), path.string()); }

// A model under way, and the checkpoint that holds it as it was after the last stage.
struct Staged {
  TrainModel model;
  Allocation allocation;
  std::string source;
};

PlainOption linear_option(const Affine& affine) {
  PlainOption option;
  option.path.kind = "linear";
  option.path.affine = plain_linear(affine);
  return option;
}

// Replaces the stage's layers by surrogates of the model as it is, and measures that.
void replace(const LinearizeRun& run, const LinearizeStage& stage, Staged& staged, json& found) {
  RoutedModel routed = load_routed(run, staged.source, &staged.allocation);
  Progress progress("fit", count_tokens(run.texts.fit), run.quiet);
  const std::vector<FittedSurrogate> fitted =
      fit_surrogates(run.pool, routed.model, routed.paths, stage.layers, run.texts.fit, run.ridge,
                     run.stop, progress);
  progress.clear();
  for (const FittedSurrogate& surrogate : fitted) {
    staged.allocation.layers[surrogate.layer].push_back(linear_option(surrogate.affine));
    found["r2_fit"].push_back(surrogate.r2);
  }
  routed.paths = pack_allocation(run.pool, routed.model, staged.allocation);
  found["replaced"] = measure(run, routed, 1);
  set_places(staged.model, staged.allocation);
}

uint64_t stage_seed(uint64_t seed, size_t stage) {
  return Random(seed, fmt::format("stage {}", stage)).next();
}

void train_stage(const LinearizeRun& run, size_t stage, const fs::path& directory,
                 TrainModel& model) {
  const size_t steps = run.stages[stage].steps;
  if (steps == 0) return;
  TrainOptions options = run.train;
  options.steps = options.schedule.steps = steps;
  options.schedule.warmup = std::min(options.schedule.warmup, steps);
  options.seed = stage_seed(run.train.seed, stage);
  options.quiet = run.quiet;
  set_trainable(parameters(model), true);
  for (TrainLayer& layer : model.layers) {
    if (layer.mlp.route != Route::kFull) set_trainable(parameters(layer.mlp), false);
  }
  ensure_writable_directory(directory);
  train(run.pool, model, run.texts.train, nullptr, options, {directory, run.identity}, run.stop);
  set_trainable(parameters(model), false);
}

json about_allocation(const LinearizeRun& run, const std::string& made_by) {
  return {{"halflin", HALFLIN_VERSION}, {"made_by", made_by}, {"original", run.original.path}};
}

void save(const LinearizeRun& run, Staged& staged, const fs::path& directory, bool linearize) {
  save_train_model(staged.model, run.original, directory, DType::kF32);
  staged.source = directory.string();
  if (!linearize) return;
  staged.allocation.model =
      allocation_model(run.original.path + ", linearised", read_checkpoint(staged.source));
  staged.allocation.metadata = about_allocation(run, "linearize");
  save_allocation(directory / kAllocationName, staged.allocation, /*bf16=*/false);
}

// The longest sequence that is trained or, with soft gates, measured on.
size_t max_window(const LinearizeRun& run) {
  return std::max(run.texts.train.window(), longest(run.texts));
}

Staged load_staged(const LinearizeRun& run, const std::string& source, bool linearize) {
  const Checkpoint checkpoint = read_checkpoint(source);
  Staged staged{load_train_model(run.pool, checkpoint, max_window(run)), {}, source};
  if (linearize) {
    staged.allocation =
        load_allocation_for((fs::path(source) / kAllocationName).string(), source, checkpoint);
    set_places(staged.model, staged.allocation);
  }
  return staged;
}

Staged load_original(const LinearizeRun& run) {
  Staged staged{load_train_model(run.pool, run.original, max_window(run)), {}, run.original.path};
  staged.allocation.model = allocation_model(run.original.path, run.original);
  staged.allocation.layers.resize(staged.model.layers.size());
  return staged;
}

// A hidden layer as PyTorch's nn.Linear starts: uniform in +-1/sqrt(in).
void draw_uniform(Parameter& p, size_t in, Random& random) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  for (float& v : p.value.span()) v = static_cast<float>(bound * (2 * random.uniform() - 1));
}

void add_gates(TrainModel& model, const GateTraining& gates, Route route) {
  const size_t d = model.config.d_model;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    MlpPlace& place = model.layers[l].mlp;
    if (place.route == Route::kFull) continue;
    place.route = route;
    TrainGate& gate = place.gate;
    gate.activation = Activation::kGeluErf;
    gate.hidden.weight.value = Matrix<float>(gates.units, d);
    gate.hidden.bias.value = Matrix<float>(1, gates.units);
    gate.out.weight.value = Matrix<float>(1, gates.units);
    gate.out.bias.value = Matrix<float>(1, 1);
    Random random(gates.train.seed, fmt::format("gate of layer {}", l));
    draw_uniform(gate.hidden.weight, d, random);
    draw_uniform(gate.hidden.bias, d, random);
    draw_uniform(gate.out.weight, gates.units, random);
    gate.out.bias.value(0, 0) = gates.bias;
  }
  name_parameters(model);
  set_trainable(parameters(model), false);
  for (TrainLayer& layer : model.layers) {
    if (!layer.mlp.gate.exists()) continue;
    TrainGate& gate = layer.mlp.gate;
    Parameter* const all[] = {&gate.hidden.weight, &gate.hidden.bias, &gate.out.weight,
                              &gate.out.bias};
    set_trainable(all, true);
  }
}

// The blend of soft gates, which only the training pass computes.
json measure_soft(const LinearizeRun& run, TrainModel& model, const TrainOptions& options) {
  json found;
  TrainWorkspace workspace;
  workspace.precision = options.precision;
  for (const HeldOutText& text : run.texts.held_out) {
    std::vector<double> sums;
    std::vector<double> means(model.layers.size());
    Progress progress("measure", count_tokens(text.windows), run.quiet);
    for (const Batch& batch : text.windows) {
      if (run.stop) throw Interrupted("interrupted");
      const PassResult pass = evaluate(run.pool, model, batch, {}, workspace);
      LossSum sum;
      sum.add(pass.losses, batch.offsets);
      if (!std::isfinite(sum.sum)) fail("{}: expected a finite loss, found {}", text.name, sum.sum);
      sums.push_back(sum.sum);
      const double share = static_cast<double>(batch.rows()) / count_tokens(text.windows);
      for (size_t l = 0; l < means.size(); ++l) means[l] += share * pass.gates[l].mean;
      progress.advance(static_cast<double>(batch.rows()));
    }
    found["loss"][text.name] = sums;
    found["gate_mean"][text.name] = means;
  }
  return found;
}

}  // namespace

std::vector<size_t> from_center(std::vector<size_t> layers) {
  std::ranges::sort(layers);
  std::vector<size_t> order;
  const size_t n = layers.size();
  // Distance 0, then the lower and the upper neighbour at each distance.
  const size_t middle = n / 2;
  for (size_t distance = 0; order.size() < n; ++distance) {
    if (distance <= middle && middle < n) order.push_back(layers[middle - distance]);
    if (distance != 0 && middle + distance < n) order.push_back(layers[middle + distance]);
  }
  return order;
}

json cheapest_order(const LinearizeRun& run, const std::vector<size_t>& layers) {
  const fs::path path = run.out / "order.json";
  if (fs::exists(path)) return read_json(path);
  RoutedModel routed = load_routed(run, run.original.path, nullptr);
  Progress progress("order",
                    count_tokens(run.texts.fit) +
                        count_tokens(run.texts.calibration) * static_cast<double>(layers.size()),
                    run.quiet);
  const std::vector<FittedSurrogate> fitted = fit_surrogates(
      run.pool, routed.model, {}, layers, run.texts.fit, run.ridge, run.stop, progress);
  std::vector<std::pair<double, size_t>> costs;
  for (const FittedSurrogate& surrogate : fitted) {
    std::vector<MlpPath> paths(routed.model.config.layers);
    paths[surrogate.layer].options.push_back(
        {std::make_shared<CheapPath>(affine_path(surrogate.affine, routed.model.precision)), {}});
    const RoutedLosses losses =
        routed_losses(run.pool, routed.model, paths, run.texts.calibration, run.stop, progress);
    double sum = 0;
    for (const double loss : losses.loss) sum += loss;
    double predictions = count_tokens(run.texts.calibration);
    for (const Batch& batch : run.texts.calibration) {
      predictions -= static_cast<double>(batch.sequences());
    }
    costs.emplace_back(sum / predictions, surrogate.layer);
  }
  std::ranges::sort(costs);
  json order = json::array();
  for (const auto& [loss, layer] : costs) order.push_back({{"layer", layer}, {"mean_loss", loss}});
  write_json(path, order);
  return order;
}

json measure_model(const LinearizeRun& run, const std::string& model, const fs::path& allocation,
                   size_t texts) {
  if (allocation.empty()) return measure(run, load_routed(run, model, nullptr), texts);
  const Allocation loaded = load_allocation_for(allocation.string(), model, read_checkpoint(model));
  return measure(run, load_routed(run, model, &loaded), texts);
}

json measure_original(const LinearizeRun& run) {
  const fs::path path = run.out / "original.json";
  if (fs::exists(path)) return read_json(path);
  json found = measure_model(run, run.original.path, {}, run.texts.held_out.size());
  write_json(path, found);
  return found;
}

std::vector<json> run_stages(const LinearizeRun& run, const LinearizeChain& chain,
                             const std::function<void(const json&)>& done) {
  const size_t count = run.stages.size();
  const auto stage_directory = [&](size_t k) { return chain.directory / fmt::format("{:03}", k); };
  const auto model_directory = [&](size_t k) {
    return k + 1 == count ? chain.final : stage_directory(k) / "model";
  };
  const auto figures_path = [&](size_t k) { return stage_directory(k) / "figures.json"; };

  std::vector<json> figures;
  while (figures.size() < count && fs::exists(figures_path(figures.size()))) {
    figures.push_back(read_json(figures_path(figures.size())));
    done(figures.back());
  }
  // What finished stages leave behind that no later one needs.
  const auto clean = [&] {
    for (size_t k = 0; k < figures.size(); ++k) {
      fs::remove(stage_directory(k) / "state.safetensors");
      if (k + 1 < figures.size() && !run.keep_stages) fs::remove_all(stage_directory(k) / "model");
    }
  };
  clean();
  if (figures.size() == count) return figures;

  Staged staged = figures.empty() ? load_original(run)
                                  : load_staged(run, model_directory(figures.size() - 1).string(),
                                                chain.linearize);
  for (size_t k = figures.size(); k < count; ++k) {
    const LinearizeStage& stage = run.stages[k];
    json found = {{"stage", k}, {"layers", stage.layers}, {"steps", stage.steps}};
    if (chain.linearize && !stage.layers.empty()) replace(run, stage, staged, found);
    train_stage(run, k, stage_directory(k), staged.model);
    save(run, staged, model_directory(k), chain.linearize);
    found["tuned"] = measure(
        run, load_routed(run, staged.source, chain.linearize ? &staged.allocation : nullptr),
        k + 1 == count ? run.texts.held_out.size() : 1);
    ensure_writable_directory(stage_directory(k));
    write_json(figures_path(k), found);
    figures.push_back(found);
    clean();
    done(figures.back());
  }
  return figures;
}

json train_gates(const LinearizeRun& run, const GateTraining& gates, Route route) {
  const std::string name = route == Route::kSoft ? "soft" : "hard";
  const fs::path path = run.out / fmt::format("gates-{}.json", name);
  if (fs::exists(path)) return read_json(path);
  Staged staged = load_staged(run, run.out.string(), /*linearize=*/true);
  add_gates(staged.model, gates, route);
  TrainOptions options = gates.train;
  options.objective.penalty.mean_weight = static_cast<float>(gates.penalty);
  options.penalty_from =
      1 + static_cast<size_t>(gates.penalty_from * static_cast<double>(options.steps));
  options.quiet = run.quiet;
  const fs::path directory = run.out / fmt::format("gates-{}", name);
  ensure_writable_directory(directory);
  train(run.pool, staged.model, run.texts.train, nullptr, options, {directory, run.identity},
        run.stop);

  json found;
  if (route == Route::kSoft) found["soft"] = measure_soft(run, staged.model, options);
  read_places(staged.model, name, staged.allocation);
  staged.allocation.metadata = about_allocation(run, fmt::format("linearize, {} gates", name));
  const fs::path allocation = run.out / fmt::format("allocation-{}.safetensors", name);
  save_allocation(allocation, staged.allocation, /*bf16=*/false);
  found["hard"] = measure_model(run, run.out.string(), allocation, run.texts.held_out.size());
  write_json(path, found);
  fs::remove(directory / "state.safetensors");
  return found;
}

}  // namespace halflin
