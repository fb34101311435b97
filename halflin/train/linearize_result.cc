#include "halflin/train/linearize_result.h"

#include <algorithm>

namespace halflin {

using nlohmann::json;

namespace {

struct TextFigures {
  const HeldOutText& text;
  std::vector<double> predictions;  // of each window
  BootstrapDraws draws;
};

std::vector<TextFigures> prepare(const LinearizeRun& run, const LinearizeStatistics& statistics) {
  std::vector<TextFigures> texts;
  for (const HeldOutText& text : run.texts.held_out) {
    std::vector<double> predictions;
    for (const Batch& batch : text.windows) {
      predictions.push_back(static_cast<double>(batch.rows() - batch.sequences()));
    }
    texts.push_back({text, std::move(predictions),
                     draw_windows(text.windows.size(), statistics.draws, statistics.seed)});
  }
  return texts;
}

void set_interval(json& target, const std::string& key, const std::string& prefix,
                  const Interval& interval) {
  target[key] = interval.estimate;
  target[prefix + "ci_lo"] = interval.lo;
  target[prefix + "ci_hi"] = interval.hi;
}

std::vector<double> sums(const json& loss, const std::string& text) {
  return loss.at(text).get<std::vector<double>>();
}

json perplexity_json(const TextFigures& text, const std::vector<double>& loss,
                     const LinearizeStatistics& statistics) {
  json out;
  set_interval(out, "ppl", "ppl_",
               perplexity(text.draws, loss, text.predictions, statistics.interval));
  return out;
}

void add_change(json& out, const TextFigures& text, const std::vector<double>& base,
                const std::vector<double>& loss, const LinearizeStatistics& statistics) {
  const Interval change = delta_ppl(text.draws, base, loss, text.predictions, statistics.interval);
  set_interval(out, "delta_ppl_pct", "", change);
  out["p"] = change.p;
  out["too_few_windows"] = change.too_few;
}

// Perplexity, and its change against the original model.
json against_original(const TextFigures& text, const json& original, const json& loss,
                      const LinearizeStatistics& statistics) {
  json out = perplexity_json(text, sums(loss, text.text.name), statistics);
  add_change(out, text, sums(original.at("loss"), text.text.name), sums(loss, text.text.name),
             statistics);
  return out;
}

json stage_json(const TextFigures& text, const LinearizeFigures& figures, size_t k,
                const LinearizeStatistics& statistics) {
  const json& stage = figures.stages[k];
  json out = {{"stage", k}, {"layers", stage.at("layers")}, {"steps", stage.at("steps")}};
  const json& before = k == 0 ? figures.original : figures.stages[k - 1].at("tuned");
  out["before"] = against_original(text, figures.original, before.at("loss"), statistics);
  if (stage.contains("replaced")) {
    out["r2_fit"] = stage.at("r2_fit");
    out["replaced"] =
        against_original(text, figures.original, stage.at("replaced").at("loss"), statistics);
  }
  out["tuned"] = against_original(text, figures.original, stage.at("tuned").at("loss"), statistics);
  if (k < figures.control.size()) {
    const json& control = figures.control[k].at("tuned").at("loss");
    out["control"] = against_original(text, figures.original, control, statistics);
  }
  return out;
}

std::vector<size_t> replaced_layers(const LinearizeRun& run) {
  std::vector<size_t> layers;
  for (const LinearizeStage& stage : run.stages) {
    layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
  }
  return layers;
}

// FLOPs of all MLPs, percent of the original model's, where linear[l] of the tokens take the
// surrogate and `units` are those of each gate (0: no gates).
double mlp_flops_pct(const LinearizeRun& run, const std::vector<double>& linear, size_t units) {
  const Config& config = run.original.architecture.config;
  const auto d = static_cast<double>(config.d_model);
  const double full = 2 * d * static_cast<double>(config.d_mlp) * (config.gated_mlp ? 3 : 2);
  const double gate = units == 0 ? 0.0 : 2 * static_cast<double>(units) * (d + 1);
  double sum = full * static_cast<double>(linear.size());
  for (const size_t l : replaced_layers(run)) sum += linear[l] * (2 * d * d - full) + gate;
  return 100 * sum / (full * static_cast<double>(linear.size()));
}

struct ModelEntry {
  std::string name;
  std::string directory{};   // relative to the run's, or none
  std::string allocation{};  // likewise
  const json* loss = nullptr;
  const json* linear = nullptr;     // of each layer, by text
  const json* gate_mean = nullptr;  // likewise
  size_t units = 0;
};

json model_json(const LinearizeRun& run, const std::vector<TextFigures>& texts,
                const LinearizeFigures& figures, const ModelEntry& entry,
                const LinearizeStatistics& statistics) {
  json out = {{"name", entry.name}};
  if (!entry.directory.empty()) out["directory"] = entry.directory;
  if (!entry.allocation.empty()) out["allocation"] = entry.allocation;
  const bool is_original = entry.name == "original";
  const bool compares = !figures.control.empty() && !is_original && entry.name != "control";
  const std::vector<size_t> layers = replaced_layers(run);
  const auto mean_of = [&](const std::vector<double>& shares) {
    double sum = 0;
    for (const size_t l : layers) sum += shares[l];
    return layers.empty() ? 0.0 : sum / static_cast<double>(layers.size());
  };
  for (const TextFigures& text : texts) {
    const std::string& name = text.text.name;
    json& found = out[name];
    const std::vector<double> loss = sums(*entry.loss, name);
    found = is_original ? perplexity_json(text, loss, statistics)
                        : against_original(text, figures.original, *entry.loss, statistics);
    if (compares) {
      add_change(found["against_control"], text,
                 sums(figures.control.back().at("tuned").at("loss"), name), loss, statistics);
    }
    if (entry.linear != nullptr) {
      const auto linear = entry.linear->at(name).get<std::vector<double>>();
      found["linear_share"] = linear;
      found["pct_linear"] = 100 * mean_of(linear);
      found["mlp_flops_pct"] = mlp_flops_pct(run, linear, entry.units);
    }
    if (entry.gate_mean != nullptr) {
      const auto means = entry.gate_mean->at(name).get<std::vector<double>>();
      for (const size_t l : layers) found["gate_mean"][std::to_string(l)] = means[l];
      found["mean_gate"] = mean_of(means);
    }
  }
  return out;
}

}  // namespace

json stage_result(const LinearizeRun& run, const LinearizeFigures& figures, size_t stage,
                  const LinearizeStatistics& statistics) {
  return stage_json(prepare(run, statistics).front(), figures, stage, statistics);
}

json linearize_result(const json& header, const LinearizeRun& run, const LinearizeFigures& figures,
                      size_t units, const LinearizeStatistics& statistics) {
  const std::vector<TextFigures> texts = prepare(run, statistics);
  json result = header;
  for (const TextFigures& text : texts) {
    double predictions = 0;
    for (const double n : text.predictions) predictions += n;
    result["held_out"][text.text.name] = {{"predictions", predictions},
                                          {"windows", text.predictions.size()}};
  }
  result["stages"] = json::array();
  for (size_t k = 0; k < figures.stages.size(); ++k) {
    result["stages"].push_back(stage_json(texts.front(), figures, k, statistics));
  }

  const json& tuned = figures.stages.back().at("tuned");
  std::vector<ModelEntry> entries;
  entries.push_back({.name = "original", .loss = &figures.original.at("loss")});
  entries.push_back({.name = "linearised",
                     .directory = ".",
                     .allocation = kAllocationName,
                     .loss = &tuned.at("loss"),
                     .linear = &tuned.at("linear")});
  if (!figures.soft.is_null()) {
    entries.push_back({.name = "soft gates",
                       .loss = &figures.soft.at("soft").at("loss"),
                       .gate_mean = &figures.soft.at("soft").at("gate_mean")});
    entries.push_back({.name = "soft gates, decided",
                       .directory = ".",
                       .allocation = "allocation-soft.safetensors",
                       .loss = &figures.soft.at("hard").at("loss"),
                       .linear = &figures.soft.at("hard").at("linear"),
                       .units = units});
  }
  if (!figures.hard.is_null()) {
    entries.push_back({.name = "hard gates",
                       .directory = ".",
                       .allocation = "allocation-hard.safetensors",
                       .loss = &figures.hard.at("hard").at("loss"),
                       .linear = &figures.hard.at("hard").at("linear"),
                       .units = units});
  }
  if (!figures.control.empty()) {
    entries.push_back({.name = "control",
                       .directory = "control",
                       .loss = &figures.control.back().at("tuned").at("loss")});
  }
  result["models"] = json::array();
  for (const ModelEntry& entry : entries) {
    result["models"].push_back(model_json(run, texts, figures, entry, statistics));
  }
  return result;
}

}  // namespace halflin
