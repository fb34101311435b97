#include "halflin/report/sweep_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "halflin/report/figures.h"

namespace halflin {

using nlohmann::json;

namespace {

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

}  // namespace halflin
