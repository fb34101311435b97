#include "halflin/report/sweep_table.h"

#include <fmt/format.h>

#include <cmath>

#include "halflin/report/terminal.h"

namespace halflin {

using nlohmann::json;

namespace {

// The gate with the lowest cost at its own threshold.
const json* best_gate(const json& layer) {
  const json* best = nullptr;
  for (const json& gate : layer.at("gates")) {
    if (best == nullptr || gate.at("delta_ppl_pct") < best->at("delta_ppl_pct")) best = &gate;
  }
  return best;
}

std::string nats(const json& harm, const std::string& key) {
  return fmt::format("{:>8.4f}  {:<17}", harm.at(key).get<double>(),
                     fmt::format("[{:.4f}, {:.4f}]", harm.at(key + "_ci_lo").get<double>(),
                                 harm.at(key + "_ci_hi").get<double>()));
}

std::string harm_table(const json& result) {
  std::string text;
  for (const json& layer : result.at("layers")) {
    if (!layer.contains("harm")) continue;
    if (text.empty()) {
      text = fmt::format(
          "\nharm of the linear map, nats a prediction, sinks left out: predicted by one backward "
          "pass, and measured\n{:>5}  {:<29}{}\n",
          "layer", "predicted", "measured");
    }
    const json& harm = layer.at("harm");
    text += fmt::format("{:>5}  {}  {}\n", layer.at("layer").get<size_t>(), nats(harm, "predicted"),
                        nats(harm, "measured"));
  }
  if (result.contains("harm_rank_correlation")) {
    text +=
        fmt::format("rank correlation {:.2f}\n", result.at("harm_rank_correlation").get<double>());
  }
  return text;
}

}  // namespace

std::string sweep_table_header() {
  return fmt::format("{:>5}  {:>6}  {:>10}  {:<24}  {:<9}  {:<7} {:>9}  {:>6}  {}\n", "layer", "R²",
                     "all linear", "95 % interval", "", "gate", "ΔPPL", "linear",
                     "tokens that take the linear path");
}

std::string sweep_table_line(const json& layer) {
  const json& all = layer.at("all_linear");
  std::string line =
      fmt::format("{:>5}  {:>5.2f}  {:>10}  {:<24}  {:<9}", layer.at("layer").get<size_t>(),
                  layer.at("r2").get<double>(), percent(all.at("delta_ppl_pct")), interval(all),
                  all.value("verdict", ""));
  if (const json* gate = best_gate(layer)) {
    const double linear = gate->at("pct_linear");
    line += fmt::format("  {:<7} {:>9}  {:>4.0f} %  {}", gate->at("name").get<std::string>(),
                        percent(gate->at("delta_ppl_pct")), linear, bar(linear / 100));
  } else if (layer.contains("gates_skipped")) {
    line += "  no gate: " + layer.at("gates_skipped").get<std::string>();
  }
  return line + "\n";
}

std::string sweep_table(const json& result) {
  std::string text = fmt::format(
      "baseline perplexity {:.2f} [{:.2f}, {:.2f}] over {:.0f} predictions\n\n",
      result.at("baseline_ppl").get<double>(), result.at("baseline_ppl_ci_lo").get<double>(),
      result.at("baseline_ppl_ci_hi").get<double>(), result.at("test_predictions").get<double>());
  text += sweep_table_header();
  bool folds = false;
  for (const json& layer : result.at("layers")) {
    text += sweep_table_line(layer);
    folds = folds || layer.contains("folds");
  }
  if (folds) {
    text += "\nneuron folding: ΔPPL when only a share of the neurons is kept\n";
    for (const json& layer : result.at("layers")) {
      if (!layer.contains("folds")) continue;
      text += fmt::format("{:>5}", layer.at("layer").get<size_t>());
      for (const json& fold : layer.at("folds")) {
        text += fmt::format("   keep {:g}: {} {} at {:.0f} % of the MLP's FLOPs",
                            fold.at("keep").get<double>(), percent(fold.at("delta_ppl_pct")),
                            interval(fold), fold.at("flops_pct").get<double>());
      }
      text += "\n";
    }
  }
  return text + harm_table(result);
}

}  // namespace halflin
