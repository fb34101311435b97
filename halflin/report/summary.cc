#include "halflin/report/summary.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "halflin/report/figures.h"
#include "halflin/report/sweep_tables.h"

namespace halflin {

using nlohmann::json;

namespace {

// For sentences: a minus sign, and a space that does not break.
std::string percent(double value) {
  const std::string digits =
      fmt::format("{:.{}f}\u00a0%", std::abs(value), std::abs(value) >= 100 ? 0 : 2);
  return (value < 0 ? "\u2212" : "+") + digits;
}

}  // namespace

std::vector<std::string> summary(const ReportRun& run) {
  std::vector<std::string> out;
  if (!run.has_sweep()) {
    std::map<std::string, size_t> verdicts;
    for (const json& s : list(run.analysis, "statements")) ++verdicts[text(s, "verdict")];
    out.push_back(fmt::format(
        "Of the paper's statements, {} hold on this text, {} do not, and {} are undecided.",
        verdicts["holds"], verdicts["does not hold"], verdicts["undecided"]));
    return out;
  }
  const json& layers = run.result.at("layers");
  const json* cheapest = nullptr;
  const json* dearest = nullptr;
  const json* best_gate = nullptr;  // the most tokens let through among gates that are free
  size_t best_gate_layer = 0;
  std::vector<size_t> fine;
  std::vector<size_t> gated_fine;
  for (const json& layer : layers) {
    const double c = cost(layer.at("all_linear")).estimate;
    if (cheapest == nullptr || c < cost(cheapest->at("all_linear")).estimate) cheapest = &layer;
    if (dearest == nullptr || c > cost(dearest->at("all_linear")).estimate) dearest = &layer;
    const auto is_fine = [](const std::string& verdict) {
      return verdict == "free" || verdict == "better";
    };
    if (is_fine(text(layer.at("all_linear"), "verdict"))) fine.push_back(layer.at("layer"));
    bool gated = false;
    for (const json& gate : list(layer, "gates")) {
      if (!is_fine(text(gate, "verdict"))) continue;
      gated = true;
      if (best_gate == nullptr || number(gate, "pct_linear") > number(*best_gate, "pct_linear")) {
        best_gate = &gate;
        best_gate_layer = layer.at("layer");
      }
    }
    if (gated) gated_fine.push_back(layer.at("layer"));
  }
  const auto described = [&](const json& layer) {
    const Figure f = cost(layer.at("all_linear"));
    return fmt::format("{} [{}, {}] at layer {}", percent(f.estimate), percent(f.lo), percent(f.hi),
                       layer.at("layer").get<size_t>());
  };
  if (layers.size() == 1) {
    out.push_back(fmt::format("Made linear for every token, the MLP changes perplexity by {}.",
                              described(*cheapest)));
  } else {
    out.push_back(fmt::format(
        "Made linear for every token, one layer's MLP changes perplexity by between {} and {}.",
        described(*cheapest), described(*dearest)));
  }
  out.push_back(fine.empty() ? "No measured layer is free of cost: no interval lies below +1 %."
                             : fmt::format("Free of cost (interval below +1 %): layer{} {}.",
                                           fine.size() == 1 ? "" : "s", layer_ranges(fine)));
  if (best_gate != nullptr) {
    const Figure f = cost(*best_gate);
    out.push_back(
        fmt::format("Free with a gate at its own threshold: layer{} {}. The most generous is the "
                    "{} gate of layer "
                    "{}: {:.0f} % of the tokens linear, perplexity {} [{}, {}].",
                    gated_fine.size() == 1 ? "" : "s", layer_ranges(gated_fine),
                    text(*best_gate, "name"), best_gate_layer, number(*best_gate, "pct_linear"),
                    percent(f.estimate), percent(f.lo), percent(f.hi)));
  }
  return out;
}

std::vector<std::string> cautions(std::span<const ReportRun> runs) {
  std::vector<std::string> out;
  const json* first = nullptr;
  bool models = false;
  bool texts = false;
  bool splits = false;
  for (const ReportRun& run : runs) {
    const json& r = run.header();
    if (r.at("layers").size() < r.at("settings").at("layers").size()) {
      out.push_back(
          fmt::format("{} is {}. Its command goes on where it stopped.", run.label, extent(r)));
    }
    for (const json& layer : r.at("layers")) {
      if (layer.contains("failed")) {
        out.push_back(fmt::format("{}: no analysis of layer {}: {}.", run.label,
                                  layer.at("layer").dump(), text(layer, "failed")));
      } else if (run.has_sweep() && layer.at("all_linear").value("too_few_windows", false)) {
        out.push_back(fmt::format("{}: {:.0f} test sequences are too few for intervals.", run.label,
                                  number(r, "test_sequences")));
        break;
      }
    }
    if (first == nullptr) first = &r;
    models = models || text(r.at("model"), "sha256") != text(first->at("model"), "sha256");
    texts = texts || text(r.at("text"), "sha256") != text(first->at("text"), "sha256");
    // A sweep and an analysis split for their own purposes.
    splits = splits || (r.at("kind") == first->at("kind") &&
                        (r.at("splits") != first->at("splits") ||
                         text(r, "protocol") != text(*first, "protocol")));
  }
  if (models) out.emplace_back("These runs are of different models.");
  if (texts) {
    out.emplace_back(
        "These runs are on different texts: their figures are not comparable as they "
        "stand.");
  } else if (splits && !models) {
    out.emplace_back("These runs split their text differently, so they test on other tokens.");
  }
  return out;
}

}  // namespace halflin
