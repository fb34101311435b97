// An allocation's result as JSON.
#include "halflin/measure/allocate.h"

namespace halflin {

using nlohmann::json;

namespace {

json interval_json(const Interval& interval) {
  return {{"delta_ppl_pct", interval.estimate},
          {"ci_lo", interval.lo},
          {"ci_hi", interval.hi},
          {"p", interval.p}};
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double v : values) total += v;
  return total;
}

json point_json(const AllocationPoint& point, bool by_clock) {
  json out = interval_json(point.delta_ppl);
  out["price"] = point.price;
  out["flops_saved_pct"] = point.saving.flops_pct;
  out["bytes_saved_pct"] = point.saving.bytes_pct;
  if (by_clock) {
    out["prefill_time_saved_pct"] = point.time.prefill;
    out["decode_time_saved_pct"] = point.time.decode;
  }
  out["sinks_routed"] = point.sinks_routed;
  double routed = 0;
  for (const auto& layer : point.saving.rates) routed += sum(layer);
  out["pct_routed"] = 100 * routed / static_cast<double>(point.saving.rates.size());
  for (const ComparedWith& control : point.controls) {
    json other = interval_json(control.delta_ppl);
    other["name"] = control.name;
    other["flops_saved_pct"] = control.flops_pct;
    out["controls"].push_back(std::move(other));
  }
  if (point.against_control) out["against_control"] = interval_json(*point.against_control);
  return out;
}

json search_json(const PriceSearch& search) {
  json tried = json::array();
  for (const PricePoint& point : search.tried) {
    tried.push_back({{"price", point.price},
                     {"delta_ppl_pct", point.delta_ppl_pct},
                     {"flops_saved_pct", point.saving.flops_pct}});
  }
  return {{"price", search.best.price},
          {"delta_ppl_pct", search.best.delta_ppl_pct},
          {"flops_saved_pct", search.best.saving.flops_pct},
          {"tried", std::move(tried)}};
}

json option_json(const PlainPath& path, double rate) {
  json out = {{"kind", path.kind}, {"rate", rate}};
  if (!path.neurons.kept.empty()) out["kept"] = path.neurons.kept.size();
  if (!path.low_rank_in.empty()) out["rank"] = path.low_rank_in.weight.rows();
  return out;
}

json menu_json(const FittedOption& option) {
  return {{"kind", option.kind},
          {"kept", option.kept},
          {"saves_pct", 100 * option.saved},
          {"harm_nats", option.scale * option.energy},
          {"gate_r2", option.r2}};
}

}  // namespace

json allocation_json(const json& header, const AllocateResult& result,
                     const AllocateOptions& options) {
  json out = header;
  const AllocationPoint& own = result.points[result.own];
  out["budget_pct"] = options.budget_pct;
  // No fit depends on these: not in `header`, which tells fits apart.
  out["settings"]["multiples"] = options.multiples;
  if (options.controls) out["settings"]["control_tokens"] = options.control_tokens;
  out["price"] = own.price;
  out["fit"] = fit_name(result.tried[result.chosen].fit);
  for (const TriedFit& fit : result.tried) {
    out["calibration"]["fits"][fit_name(fit.fit)] = search_json(fit.search);
  }
  if (result.before_healing) {
    out["calibration"]["before_healing"] = search_json(*result.before_healing);
    out["settings"]["heal"]["from_pct"] = options.healing->from_pct;
  }
  out["calibration"]["delta_ppl_pct"] = result.calibrated.delta_ppl_pct;
  out["calibration"]["flops_saved_pct"] = result.calibrated.saving.flops_pct;
  out["baseline_ppl"] = {{"estimate", result.baseline_ppl.estimate},
                         {"ci_lo", result.baseline_ppl.lo},
                         {"ci_hi", result.baseline_ppl.hi}};
  const bool by_clock = !options.times.empty();
  out["test"] = point_json(own, by_clock);
  out["test"]["predictions"] = result.test_predictions;
  out["test"]["windows"] = result.test_windows;
  out["test"]["too_few_windows"] = own.delta_ppl.too_few;
  out["test"]["sinks"] = result.test_sinks;
  for (const AllocationPoint& point : result.points)
    out["pareto"].push_back(point_json(point, by_clock));
  for (size_t l = 0; l < result.layers.size(); ++l) {
    json layer = {{"layer", l}, {"rate", sum(own.saving.rates[l])}, {"options", json::array()}};
    for (size_t i = 0; i < result.layers[l].size(); ++i) {
      layer["options"].push_back(option_json(result.layers[l][i].path, own.saving.rates[l][i]));
    }
    layer["nats_per_energy"] = result.fitted[l].scale;
    for (const FittedOption& option : result.fitted[l].options) {
      layer["menu"].push_back(menu_json(option));
    }
    out["layers"].push_back(std::move(layer));
  }
  return out;
}

}  // namespace halflin
