#include "halflin/measure/fit_store.h"

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/run.h"

namespace halflin {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

AllocationModel one_layer(const Config& config) {
  return {.name = "",
          .sha256 = "",
          .family = "",
          .layers = 1,
          .d_model = config.d_model,
          .d_mlp = config.d_mlp,
          .gated_mlp = config.gated_mlp};
}

json time_json(const PathTime& time) {
  return {
      {"whole", time.whole}, {"token", time.token}, {"fixed", time.fixed}, {"decode", time.decode}};
}

PathTime time_of(const json& stored) {
  return {stored.at("whole"), stored.at("token"), stored.at("fixed"), stored.at("decode")};
}

json figures_of(const FittedOption& option) {
  return {{"sink_score", option.sink_score},
          {"saved", option.saved},
          {"gate_cost", option.gate_cost},
          {"fixed_cost", option.fixed_cost},
          {"time", time_json(option.time)},
          {"energy", option.energy},
          {"energy_all", option.energy_all},
          {"scale", option.scale},
          {"r2", option.r2}};
}

fs::path layer_path(const fs::path& directory, const std::string& fit, size_t layer) {
  return directory / fit / fmt::format("{:03}.allocation", layer);
}

fs::path point_path(const fs::path& directory, const std::string& fit, double price) {
  return directory / fit / fmt::format("price-{}.json", price);
}

std::optional<json> read(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  return parse_json(read_file(path), path.string());
}

}  // namespace

FitStore::FitStore(fs::path directory, const json& header) : directory_(std::move(directory)) {
  claim_directory(directory_, header);
}

std::optional<FittedLayer> FitStore::layer(const Model& model, const std::string& fit,
                                           size_t layer) const {
  const fs::path path = layer_path(directory_, fit, layer);
  if (!fs::exists(path)) return std::nullopt;
  Allocation stored = load_allocation(path);
  const json& figures = stored.metadata;
  const MlpWeights weights = read_mlp_weights(model, layer);
  FittedLayer out;
  out.scale = figures.at("scale");
  out.linear_energy = figures.at("linear_energy");
  figures.at("neuron_mean").get_to(out.neuron_mean);
  figures.at("neuron_energy").get_to(out.neuron_energy);
  for (size_t i = 0; i < stored.layers.front().size(); ++i) {
    PlainOption& from = stored.layers.front()[i];
    const auto packed = std::make_shared<CheapPath>(pack_path(model, weights, from.path));
    if (i == figures.at("linear").get<size_t>()) out.linear = packed;
    if (i == figures.at("options").size()) break;  // the linear surrogate, for controls alone
    const json& own = figures.at("options")[i];
    FittedOption option;
    option.kind = from.path.kind;
    option.kept = from.path.neurons.kept.size();
    option.path = std::make_shared<PlainPath>(std::move(from.path));
    option.packed = packed;
    option.gate = std::move(from.gate.value());
    option.sink_score = own.at("sink_score");
    option.saved = own.at("saved");
    option.gate_cost = own.at("gate_cost");
    option.fixed_cost = own.at("fixed_cost");
    option.time = time_of(own.at("time"));
    option.energy = own.at("energy");
    option.energy_all = own.at("energy_all");
    option.scale = own.at("scale");
    option.r2 = own.at("r2");
    out.options.push_back(std::move(option));
  }
  return out;
}

void FitStore::save_layer(const Model& model, const std::string& fit, size_t layer,
                          const FittedLayer& fitted) const {
  Allocation stored;
  stored.model = one_layer(model.config);
  json& figures = stored.metadata;
  figures = {{"scale", fitted.scale},
             {"linear_energy", fitted.linear_energy},
             {"neuron_mean", fitted.neuron_mean},
             {"neuron_energy", fitted.neuron_energy},
             {"options", json::array()},
             {"linear", fitted.options.size()}};
  std::vector<PlainOption> options;
  for (const FittedOption& option : fitted.options) {
    if (option.packed == fitted.linear) figures["linear"] = options.size();
    figures["options"].push_back(figures_of(option));
    options.push_back({copy_path(*option.path), option.gate});
  }
  if (fitted.plain_linear) options.push_back({copy_path(*fitted.plain_linear), std::nullopt});
  stored.layers.push_back(std::move(options));
  const fs::path path = layer_path(directory_, fit, layer);
  fs::create_directories(path.parent_path());
  save_allocation(path, stored, /*bf16=*/false);
}

std::optional<PricePoint> FitStore::point(const std::string& fit, double price) const {
  const auto stored = read(point_path(directory_, fit, price));
  if (!stored) return std::nullopt;
  PricePoint point;
  point.price = price;
  point.delta_ppl_pct = stored->at("delta_ppl_pct");
  point.saving.flops_pct = stored->at("flops_pct");
  point.saving.bytes_pct = stored->at("bytes_pct");
  stored->at("rates").get_to(point.saving.rates);
  point.saved_pct = stored->at("saved_pct");
  return point;
}

void FitStore::save_point(const std::string& fit, const PricePoint& point) const {
  const fs::path path = point_path(directory_, fit, point.price);
  fs::create_directories(path.parent_path());
  const json stored = {{"delta_ppl_pct", point.delta_ppl_pct},
                       {"flops_pct", point.saving.flops_pct},
                       {"bytes_pct", point.saving.bytes_pct},
                       {"rates", point.saving.rates},
                       {"saved_pct", point.saved_pct}};
  write_file_atomically(path, stored.dump() + "\n");
}

std::optional<std::vector<PathTime>> FitStore::times() const {
  const auto stored = read(directory_ / "times.json");
  if (!stored) return std::nullopt;
  std::vector<PathTime> times;
  for (const json& one : *stored) times.push_back(time_of(one));
  return times;
}

void FitStore::save_times(const std::vector<PathTime>& times) const {
  json stored = json::array();
  for (const PathTime& time : times) stored.push_back(time_json(time));
  write_file_atomically(directory_ / "times.json", stored.dump() + "\n");
}

}  // namespace halflin
