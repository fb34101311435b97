#include "halflin/report/sweep_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace halflin {

using nlohmann::json;

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number() ? kNone : found->get<double>();
}

Figure figure(const json& object, const std::string& key, const std::string& prefix) {
  return {number(object, key), number(object, prefix + "ci_lo"), number(object, prefix + "ci_hi")};
}

Figure cost(const json& variant) { return figure(variant, "delta_ppl_pct", ""); }

std::string text(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? std::string()
         : found->is_string()  ? found->get<std::string>()
                               : found->dump();
}

const json& list(const json& layer, const std::string& key) {
  static const json kEmpty = json::array();
  return layer.contains(key) ? layer.at(key) : kEmpty;
}

// For sentences: a minus sign, and a space that does not break.
std::string percent(double value) {
  const std::string digits =
      fmt::format("{:.{}f}\u00a0%", std::abs(value), std::abs(value) >= 100 ? 0 : 2);
  return (value < 0 ? "\u2212" : "+") + digits;
}

std::string split_ranges(const json& splits) {
  std::string out;
  for (const char* name : {"fit", "train", "calibration", "test", "harm"}) {
    if (!splits.contains(name)) continue;
    const json& split = splits.at(name);
    const json& range = split.is_object() ? split.at("lines") : split;
    if (range.is_null()) continue;
    out += fmt::format("{}{} {}\u2013{}", out.empty() ? "" : ", ", name, range.at(0).dump(),
                       range.at(1).dump());
  }
  return out;
}

std::string split_text(const json& splits) {
  const std::string ranges =
      splits.contains("a") && splits.contains("b")  // an analysis has two texts
          ? fmt::format("A: {}; B: {}", split_ranges(splits.at("a")), split_ranges(splits.at("b")))
          : split_ranges(splits);
  return fmt::format("{} ({}s)", ranges, text(splits, "unit"));
}

Table runs_table(std::span<const ReportRun> runs) {
  Table table{"runs",
              "Runs",
              "",
              {{"run", "run"},
               {"model", "model"},
               {"family", "family"},
               {"parameters", "parameters (M)", 1},
               {"layers", "layers measured"},
               {"baseline_ppl", "perplexity of the model itself", 2},
               {"predictions", "test predictions"},
               {"protocol", "protocol"},
               {"splits", "splits"},
               {"dtype", "precision"},
               {"seed", "seed"},
               {"intervals", "intervals"},
               {"text", "text"},
               {"second_text", "second text"},
               {"text_sha256", "text sha256"},
               {"model_sha256", "model sha256"},
               {"halflin", "halflin"},
               {"command", "command"}},
              {}};
  for (const ReportRun& run : runs) {
    const json& r = run.header();
    const json& settings = r.at("settings");
    const json& bootstrap = settings.at("bootstrap");
    table.rows.push_back(
        {run.label, text(r.at("model"), "name"), text(r.at("model"), "family"),
         number(r.at("model"), "parameters") / 1e6, extent(r),
         figure(r, "baseline_ppl", "baseline_ppl_"), number(r, "test_predictions"),
         text(r, "protocol"), split_text(r.at("splits")), text(settings, "dtype"),
         text(settings, "seed"),
         fmt::format("{:g} % {}, {:.0f} draws of {}s", 100 * number(bootstrap, "confidence"),
                     text(bootstrap, "interval"), number(bootstrap, "draws"),
                     text(bootstrap, "unit")),
         text(r.at("text"), "path"),
         r.contains("second_text") ? text(r.at("second_text"), "path") : "",
         text(r.at("text"), "sha256"), text(r.at("model"), "sha256"), text(r, "halflin"),
         text(r, "command")});
  }
  return table;
}

using AddRows = std::function<void(const ReportRun&, const json& layer, Table&)>;

// A table with rows for each layer of each run.
Table by_layer(Table table, std::span<const ReportRun> runs, const AddRows& add) {
  for (const ReportRun& run : runs) {
    if (!run.has_sweep()) continue;
    for (const json& layer : run.result.at("layers")) add(run, layer, table);
  }
  return table;
}

Table layers_table(std::span<const ReportRun> runs) {
  return by_layer(
      {"layers",
       "Each layer's MLP replaced by a linear map",
       "R² is the share of the MLP output's variance that the linear map explains on test tokens. "
       "ΔPPL is the change of perplexity when every token takes it, this layer only. Sinks are "
       "test "
       "tokens with an output over 20 times the median norm.",
       {{"run", "run"},
        {"layer", "layer"},
        {"r2", "R²", 3},
        {"r2_without_sinks", "R² without sinks", 3},
        {"sinks", "sinks"},
        {"delta_ppl_pct", "ΔPPL, %", 2, true},
        {"p_holm", "p (Holm)", 4},
        {"verdict", "verdict"},
        {"gates_skipped", "no gates because"}},
       {}},
      runs, [](const ReportRun& run, const json& layer, Table& table) {
        const json& all = layer.at("all_linear");
        table.rows.push_back({run.label, number(layer, "layer"), figure(layer, "r2", "r2_"),
                              figure(layer, "r2_without_sinks", "r2_without_sinks_"),
                              number(layer, "sinks"), cost(all), number(all, "p_holm"),
                              text(all, "verdict"), text(layer, "gates_skipped")});
      });
}

Table routing_table(std::span<const ReportRun> runs) {
  Table table = by_layer(
      {"routing",
       "Tokens routed by a gate",
       "Each token takes the linear map or the full MLP. \"own\" is the gate's own threshold; the "
       "shares are what the threshold was calibrated to. Random and oracle (the true error) "
       "routing "
       "are the controls. AUC: how well the gate tells tokens below the median harm from the "
       "others.",
       {{"run", "run"},
        {"layer", "layer"},
        {"router", "router"},
        {"at", "threshold"},
        {"pct_linear", "% linear", 1},
        {"delta_ppl_pct", "ΔPPL, %", 2, true},
        {"p_holm", "p (Holm)", 4},
        {"verdict", "verdict"},
        {"auc", "AUC", 3},
        {"params", "parameters"}},
       {}},
      runs, [](const ReportRun& run, const json& layer, Table& out) {
        const auto add = [&](const std::string& name, const json& variant, const json* gate) {
          const double rate = number(variant, "rate");
          out.rows.push_back(
              {run.label, number(layer, "layer"), name,
               std::isnan(rate) ? std::string("own") : fmt::format("{:g} %", 100 * rate),
               figure(variant, "pct_linear", "pct_linear_"), cost(variant),
               number(variant, "p_holm"), text(variant, "verdict"),
               gate == nullptr ? Figure{} : figure(*gate, "auc", "auc_"),
               gate == nullptr ? kNone : number(*gate, "params")});
        };
        for (const json& gate : list(layer, "gates")) {
          add(gate.at("name"), gate, &gate);
          for (const json& variant : list(gate, "at")) add(gate.at("name"), variant, nullptr);
        }
        for (const json& variant : list(layer, "routing_controls")) {
          add(variant.at("name"), variant, nullptr);
        }
      });
  return table;
}

Table harm_table(std::span<const ReportRun> runs) {
  return by_layer(
      {"harm",
       "Harm in nats, predicted and measured",
       "What the linear map costs a prediction when every token but the sinks takes it. Predicted: "
       "½⟨∂L/∂f, g − f⟩² with labels sampled from the model, one backward pass for all layers, on "
       "tokens of its own. Scale: nats a unit of squared error costs.",
       {{"run", "run"},
        {"layer", "layer"},
        {"predicted", "predicted, nats", 4},
        {"measured", "measured, nats", 4, true},
        {"scale", "scale, nats", 8},
        {"sinks", "sinks left out"}},
       {}},
      runs, [](const ReportRun& run, const json& layer, Table& table) {
        if (!layer.contains("harm")) return;
        const json& harm = layer.at("harm");
        table.rows.push_back({run.label, number(layer, "layer"),
                              figure(harm, "predicted", "predicted_"),
                              figure(harm, "measured", "measured_"),
                              figure(harm, "scale", "scale_"), number(harm, "sinks")});
      });
}

Table replacements_table(std::span<const ReportRun> runs) {
  return by_layer({"replacements",
                   "Other things in the MLP's place",
                   "For every token of the layer. FLOPs are percent of the full MLP's.",
                   {{"run", "run"},
                    {"layer", "layer"},
                    {"replacement", "replacement"},
                    {"flops_pct", "FLOPs, %", 1},
                    {"delta_ppl_pct", "ΔPPL, %", 2, true}},
                   {}},
                  runs, [](const ReportRun& run, const json& layer, Table& table) {
                    if (list(layer, "controls").empty()) return;
                    const auto add = [&](const std::string& name, const json& variant) {
                      table.rows.push_back({run.label, number(layer, "layer"), name,
                                            number(variant, "flops_pct"), cost(variant)});
                    };
                    add("linear", layer.at("all_linear"));
                    for (const json& v : list(layer, "controls")) add(v.at("name"), v);
                  });
}

Table folding_table(std::span<const ReportRun> runs) {
  return by_layer(
      {"folding",
       "Neuron folding",
       "A share of the neurons is kept, the rest is folded into a linear map.",
       {{"run", "run"},
        {"layer", "layer"},
        {"keep", "neurons kept, %", 0},
        {"flops_pct", "FLOPs, %", 1},
        {"delta_ppl_pct", "ΔPPL, %", 2, true}},
       {}},
      runs, [](const ReportRun& run, const json& layer, Table& table) {
        for (const json& v : list(layer, "folds")) {
          table.rows.push_back({run.label, number(layer, "layer"), 100 * number(v, "keep"),
                                number(v, "flops_pct"), cost(v)});
        }
      });
}

Table delta_table(std::span<const ReportRun> runs) {
  Table table{
      "delta",
      "What the linear map costs token by token",
      "δ is a token's loss with the linear map in this layer less its loss without, in nats, "
      "on test tokens. Harm is the sum of the positive δ.",
      {{"run", "run"},
       {"layer", "layer"},
       {"tokens", "tokens"},
       {"pct_beneficial", "δ ≤ 0, %", 1},
       {"mean", "mean", 4, true},
       {"sd", "sd", 3},
       {"p1", "1 %", 3, true},
       {"p5", "5 %", 3, true},
       {"p25", "25 %", 3, true},
       {"p50", "median", 4, true},
       {"p75", "75 %", 3, true},
       {"p95", "95 %", 3, true},
       {"p99", "99 %", 3, true},
       {"harm_1", "harm by the worst 1 %, %", 0},
       {"harm_5", "by the worst 5 %, %", 0},
       {"harm_10", "by the worst 10 %, %", 0}},
      {}};
  for (const ReportRun& run : runs) {
    if (!run.has_sweep()) continue;
    for (size_t i = 0; i < run.tokens.size(); ++i) {
      const json& layer = run.result.at("layers").at(i);
      const json& stats = layer.at("delta").at("test");
      const DeltaShape shape = delta_shape(run.tokens[i].delta);
      std::vector<Cell> row = {run.label,
                               number(layer, "layer"),
                               number(stats, "tokens"),
                               number(stats, "pct_beneficial"),
                               number(stats, "mean"),
                               number(stats, "sd")};
      for (size_t q = 0; q < 7; ++q) {
        row.emplace_back(shape.tokens != 0 ? shape.quantiles[q]
                         : q == 3          ? number(stats, "median")
                                           : kNone);
      }
      for (size_t h = 0; h < 3; ++h) {
        row.emplace_back(shape.tokens != 0 ? shape.harm_pct[h] : kNone);
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

constexpr const char* kVerdicts[] = {"better", "free", "undecided", "costs"};

Table verdicts_table(std::span<const ReportRun> runs) {
  Table table{"verdicts",
              "Verdicts",
              "better: the interval lies below 0 and p after Holm's correction over the layers is "
              "below 0.05. free: the interval lies below +1 %. costs: it lies above 0, p likewise. "
              "undecided: none of these.",
              {{"run", "run"},
               {"replacement", "replacement"},
               {"better", "better: layers"},
               {"free", "free: layers"},
               {"undecided", "undecided: layers"},
               {"costs", "costs: layers"}},
              {}};
  for (const ReportRun& run : runs) {
    if (!run.has_sweep()) continue;
    std::vector<std::string> names = {"all linear"};
    std::map<std::string, std::map<std::string, std::vector<size_t>>> layers;
    for (const json& layer : run.result.at("layers")) {
      const size_t l = layer.at("layer");
      layers["all linear"][text(layer.at("all_linear"), "verdict")].push_back(l);
      for (const json& gate : list(layer, "gates")) {
        const std::string name = "gate " + gate.at("name").get<std::string>();
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        layers[name][text(gate, "verdict")].push_back(l);
      }
    }
    for (const std::string& name : names) {
      std::vector<Cell> row = {run.label, name};
      for (const char* verdict : kVerdicts) row.emplace_back(layer_ranges(layers[name][verdict]));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace

std::vector<Table> sweep_tables(std::span<const ReportRun> runs) {
  std::vector<Table> tables;
  for (auto make : {runs_table, layers_table, verdicts_table, routing_table, harm_table,
                    replacements_table, folding_table, delta_table}) {
    Table table = make(runs);
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

std::string layer_ranges(const std::vector<size_t>& layers) {
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end + 1 < layers.size() && layers[end + 1] == layers[end] + 1) ++end;
    out += out.empty() ? "" : ", ";
    out +=
        end == i ? fmt::format("{}", layers[i]) : fmt::format("{}\u2013{}", layers[i], layers[end]);
    i = end + 1;
  }
  return out;
}

DeltaShape delta_shape(std::span<const float> delta) {
  DeltaShape shape;
  std::vector<float> sorted;
  std::copy_if(delta.begin(), delta.end(), std::back_inserter(sorted),
               [](float d) { return std::isfinite(d); });
  shape.tokens = sorted.size();
  if (sorted.empty()) return shape;
  std::sort(sorted.begin(), sorted.end());
  const auto last = static_cast<double>(sorted.size() - 1);
  for (const double q : {0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99}) {
    const double at = q * last;
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, sorted.size() - 1);
    const double part = at - static_cast<double>(below);
    shape.quantiles.push_back((1 - part) * static_cast<double>(sorted[below]) +
                              part * static_cast<double>(sorted[above]));
  }
  const auto harm = [&](size_t tokens) {
    double sum = 0;
    for (size_t i = sorted.size() - tokens; i < sorted.size(); ++i) {
      sum += std::max(0.0, static_cast<double>(sorted[i]));
    }
    return sum;
  };
  const double all = harm(sorted.size());
  for (const double share : {0.01, 0.05, 0.1}) {
    const auto tokens = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    shape.harm_pct.push_back(all > 0 ? 100 * harm(tokens) / all : kNone);
  }
  return shape;
}

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
