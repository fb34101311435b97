#include "halflin/measure/sweep_result.h"

#include <algorithm>
#include <cmath>

namespace halflin {

using nlohmann::json;

namespace {

constexpr double kFreeBelowPct = 1.0;
constexpr double kSignificance = 0.05;

// value under `key`, its interval under prefix + ci_lo, ci_hi.
void set_interval(json& target, const std::string& key, const std::string& prefix,
                  const Interval& interval) {
  target[key] = interval.estimate;
  target[prefix + "ci_lo"] = interval.lo;
  target[prefix + "ci_hi"] = interval.hi;
}

json delta_json(const DeltaStats& stats) {
  return {{"tokens", stats.count},
          {"median", stats.median},
          {"mean", stats.mean},
          {"sd", stats.sd},
          {"pct_beneficial", stats.pct_beneficial}};
}

json variant_json(const VariantResult& variant, const SweepBaseline& baseline,
                  const SweepOptions& options) {
  json out;
  const Interval delta = delta_ppl(baseline.draws, baseline.loss, variant.loss,
                                   baseline.predictions, options.interval);
  const Interval ppl =
      perplexity(baseline.draws, variant.loss, baseline.predictions, options.interval);
  set_interval(out, "delta_ppl_pct", "", delta);
  out["p"] = delta.p;
  out["too_few_windows"] = delta.too_few;
  set_interval(out, "ppl", "ppl_", ppl);
  return out;
}

void add_rate(json& out, const VariantResult& variant, const SweepBaseline& baseline,
              const SweepOptions& options) {
  const Interval share =
      ratio(baseline.draws, variant.linear, baseline.tokens, 100, options.interval);
  set_interval(out, "pct_linear", "pct_linear_", share);
}

json routed_json(const VariantResult& variant, const SweepBaseline& baseline,
                 const SweepOptions& options) {
  json out = variant_json(variant, baseline, options);
  if (variant.rate >= 0) out["rate"] = variant.rate;
  out["threshold"] = variant.threshold;
  add_rate(out, variant, baseline, options);
  return out;
}

json whole_json(const VariantResult& variant, const SweepBaseline& baseline,
                const SweepOptions& options) {
  json out = variant_json(variant, baseline, options);
  out["name"] = variant.name;
  out["flops_pct"] = variant.flops_pct;
  return out;
}

json harm_json(const LayerResult& layer, const SweepBaseline& baseline,
               const SweepOptions& options) {
  const LayerHarm& harm = *layer.harm;
  std::vector<double> cost(baseline.loss.size());
  for (size_t s = 0; s < cost.size(); ++s) {
    cost[s] = layer.all_linear_without_sinks[s] - baseline.loss[s];
  }
  const Interval predicted =
      ratio(baseline.harm_draws, harm.harm, harm.predictions, 1, options.interval);
  json out;
  set_interval(out, "predicted", "predicted_", predicted);
  out["too_few_windows"] = predicted.too_few;
  set_interval(out, "measured", "measured_",
               ratio(baseline.draws, cost, baseline.predictions, 1, options.interval));
  set_interval(out, "scale", "scale_",
               ratio(baseline.harm_draws, harm.harm, harm.energy, 1, options.interval));
  out["sinks"] = harm.sinks;
  return out;
}

// Sets p_holm and verdict in the same place of every layer: at(layer) finds it, or null.
template <class At>
void judge(std::vector<json>& layers, const At& at) {
  std::vector<json*> places;
  std::vector<double> p;
  for (json& layer : layers) {
    if (json* place = at(layer)) {
      places.push_back(place);
      p.push_back(place->at("p").get<double>());
    }
  }
  const std::vector<double> adjusted = holm(p);
  for (size_t i = 0; i < places.size(); ++i) {
    json& place = *places[i];
    const double lo = place.at("ci_lo");
    const double hi = place.at("ci_hi");
    const bool sure = adjusted[i] < kSignificance;
    const bool too_few = place.at("too_few_windows");
    place["p_holm"] = adjusted[i];
    place["verdict"] = too_few              ? "undecided"
                       : hi < 0 && sure     ? "better"
                       : hi < kFreeBelowPct ? "free"
                       : lo > 0 && sure     ? "costs"
                                            : "undecided";
  }
}

}  // namespace

json baseline_json(const SweepBaseline& baseline, const SweepOptions& options) {
  json out;
  set_interval(out, "baseline_ppl", "baseline_ppl_",
               perplexity(baseline.draws, baseline.loss, baseline.predictions, options.interval));
  double predictions = 0;
  for (const double n : baseline.predictions) predictions += n;
  out["test_predictions"] = predictions;
  out["test_sequences"] = baseline.loss.size();
  return out;
}

json layer_json(const LayerResult& layer, const SweepBaseline& baseline,
                const SweepOptions& options) {
  json out;
  out["layer"] = layer.layer;
  set_interval(out, "r2", "r2_", layer.r2);
  set_interval(out, "r2_without_sinks", "r2_without_sinks_", layer.r2_without_sinks);
  out["sinks"] = layer.sinks;
  out["all_linear"] = whole_json(layer.all_linear, baseline, options);
  out["delta"]["test"] = delta_json(layer.test_delta);
  if (layer.train_delta.count != 0) out["delta"]["train"] = delta_json(layer.train_delta);

  if (layer.harm) out["harm"] = harm_json(layer, baseline, options);
  out["gates"] = json::array();
  const double cost = out["all_linear"]["delta_ppl_pct"];
  std::string reason = layer.no_gates_reason;
  if (cost > options.skip_gates_above_pct) {
    reason = fmt::format("all-linear costs more than +{:g} %", options.skip_gates_above_pct);
  } else {
    for (const GateResult& gate : layer.gates) {
      json entry = routed_json(gate.own, baseline, options);
      entry["name"] = gate.name;
      entry["params"] = gate.params;
      set_interval(entry, "auc", "auc_", gate.auc);
      entry["at"] = json::array();
      for (const VariantResult& variant : gate.at_rate) {
        entry["at"].push_back(routed_json(variant, baseline, options));
      }
      out["gates"].push_back(std::move(entry));
    }
  }
  if (!reason.empty()) out["gates_skipped"] = reason;
  for (const VariantResult& variant : layer.folds) {
    json entry = whole_json(variant, baseline, options);
    entry["keep"] = variant.rate;
    out["folds"].push_back(std::move(entry));
  }
  for (const VariantResult& variant : layer.controls) {
    out["controls"].push_back(whole_json(variant, baseline, options));
  }
  for (const VariantResult& variant : layer.routing_controls) {
    json entry = routed_json(variant, baseline, options);
    entry["name"] = variant.name;
    out["routing_controls"].push_back(std::move(entry));
  }
  return out;
}

json assemble_sweep(const json& header, const json& baseline, const std::vector<json>& layers,
                    size_t layers_asked) {
  std::vector<json> judged = layers;
  judge(judged, [](json& layer) { return &layer.at("all_linear"); });
  size_t gates = 0;
  for (const json& layer : judged) gates = std::max(gates, layer.at("gates").size());
  for (size_t g = 0; g < gates; ++g) {
    judge(judged, [g](json& layer) {
      return g < layer.at("gates").size() ? &layer.at("gates").at(g) : nullptr;
    });
  }
  json result = header;
  result.update(baseline);
  result["complete"] = layers.size() == layers_asked;
  std::vector<double> predicted, measured;
  for (const json& layer : judged) {
    if (!layer.contains("harm")) continue;
    predicted.push_back(layer.at("harm").at("predicted"));
    measured.push_back(layer.at("harm").at("measured"));
  }
  if (predicted.size() >= 3) {
    const double correlation = rank_correlation(predicted, measured);
    if (std::isfinite(correlation)) result["harm_rank_correlation"] = correlation;
  }
  result["layers"] = judged;
  return result;
}

SweepStore::SweepStore(std::filesystem::path directory, const json& header)
    : store_(std::move(directory), header) {}

std::optional<json> SweepStore::baseline() const { return store_.part("baseline"); }

std::optional<json> SweepStore::layer(size_t layer) const { return store_.layer(layer); }

std::vector<json> SweepStore::finished(std::span<const size_t> layers) const {
  return store_.finished(layers);
}

void SweepStore::save_baseline(const SweepBaseline& baseline, const SweepOptions& options) const {
  store_.save_columns("tokens.safetensors", {{"id", baseline.token_id},
                                             {"sequence", baseline.token_sequence},
                                             {"loss", baseline.token_loss}});
  store_.save_part("baseline", baseline_json(baseline, options));
}

json SweepStore::save_layer(const LayerResult& layer, const SweepBaseline& baseline,
                            const SweepOptions& options) const {
  RunStore::Columns columns = {{"delta", layer.delta}, {"error_energy", layer.error_energy}};
  for (size_t g = 0; g < layer.gates.size(); ++g) {
    columns.emplace_back("score." + layer.gates[g].name, layer.scores[g]);
  }
  json result = layer_json(layer, baseline, options);
  store_.save_layer(layer.layer, result, columns);
  return result;
}

void SweepStore::save_result(const json& result) const { store_.save_part("result", result); }

}  // namespace halflin
