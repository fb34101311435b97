#include "halflin/report/analysis_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "halflin/io/json.h"

namespace halflin {

using nlohmann::json;

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The member at a path like "gates/auc", or null.
const json* find(const json& in, std::string_view path) {
  const json* at = &in;
  while (at != nullptr && !path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    at = find_member(*at, std::string(path.substr(0, slash)));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return at;
}

double number(const json& in, std::string_view path) {
  const json* found = find(in, path);
  return found != nullptr && found->is_number() ? found->get<double>() : kNone;
}

std::string text(const json& in, std::string_view path) {
  const json* found = find(in, path);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

const json& items(const json& in, std::string_view path) {
  static const json kEmpty = json::array();
  const json* found = find(in, path);
  return found != nullptr && found->is_structured() ? *found : kEmpty;
}

// A figure {"value", "ci_lo", "ci_hi"}, times a factor.
Cell figure(const json& in, std::string_view path, double factor = 1) {
  const json* found = find(in, path);
  if (found == nullptr) return kNone;
  const double few = number(*found, "too_few");
  if (!std::isnan(few)) return fmt::format("too few ({:.0f})", few);
  return Figure{factor * number(*found, "value"), factor * number(*found, "ci_lo"),
                factor * number(*found, "ci_hi")};
}

std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

using AddRows = std::function<void(const std::string& run, double layer, const json&, Table&)>;

Table by_layer(Table table, std::span<const ReportRun> runs, const AddRows& add) {
  for (const ReportRun& run : runs) {
    for (const json& layer : items(run.analysis, "layers")) {
      add(run.label, number(layer, "layer"), layer, table);
    }
  }
  return table;
}

Table statements(std::span<const ReportRun> runs) {
  Table table{
      "statements",
      "The paper's statements, held against this text",
      "The figure is the mean over layers. for and against: layers whose own interval agrees "
      "with the statement, or contradicts it.",
      {{"run", "run"},
       {"verdict", "verdict"},
       {"statement", "statement"},
       {"figure", "figure", 3},
       {"for", "for"},
       {"against", "against"},
       {"layers", "of layers"},
       {"published", "the paper has"},
       {"measured", "what was measured"},
       {"rule", "rule"},
       {"note", "note"}},
      {}};
  for (const ReportRun& run : runs) {
    for (const json& s : items(run.analysis, "statements")) {
      table.rows.push_back({run.label, text(s, "verdict"), text(s, "statement"),
                            Figure{number(s, "value"), number(s, "ci_lo"), number(s, "ci_hi")},
                            number(s, "layers_hold"), number(s, "layers_fail"), number(s, "layers"),
                            text(s, "published"), text(s, "measured"), text(s, "rule"),
                            text(s, "note")});
    }
  }
  return table;
}

Table probes(std::span<const ReportRun> runs) {
  return by_layer(
      {"probes",
       "Token or context: what a gate can tell from",
       "Held-out AUC of gates on the MLP's whole input and on parts of it. token, context: the two "
       "parts of the input before the norm, the norm's statistics frozen. raw: the paper's way, "
       "the "
       "embedding subtracted after it.",
       {{"run", "run"},
        {"layer", "layer"},
        {"input", "the gate sees"},
        {"auc", "AUC", 3},
        {"params", "parameters"}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        for (const auto& [name, probe] : items(in, "gates/auc").items()) {
          table.rows.push_back(
              {run, layer, spaced(name), figure(probe, ""), number(probe, "params")});
        }
        for (const auto& [name, difference] : items(in, "gates/auc_differences").items()) {
          table.rows.push_back({run, layer, spaced(name), figure(difference, ""), kNone});
        }
      });
}

Table parts(std::span<const ReportRun> runs) {
  return by_layer({"parts",
                   "Sizes of the token's and the context's part of the input",
                   "Means over tokens. raw: after the norm, as the paper does; frozen: before it.",
                   {{"run", "run"},
                    {"layer", "layer"},
                    {"way", "decomposition"},
                    {"x_norm", "‖x‖", 2},
                    {"token_norm", "‖token part‖", 2},
                    {"context_norm", "‖context part‖", 2},
                    {"context_fraction", "context's share", 3},
                    {"cosine", "cosine of context part and x", 3}},
                   {}},
                  runs, [](const std::string& run, double layer, const json& in, Table& table) {
                    for (const char* way : {"raw", "frozen"}) {
                      const json& p = items(in, std::string("decomposition/") + way);
                      if (p.empty()) continue;
                      table.rows.push_back({run, layer, std::string(way), number(p, "x_norm"),
                                            number(p, "token_norm"), number(p, "context_norm"),
                                            number(p, "context_fraction"), number(p, "cosine")});
                    }
                  });
}

Table explained(std::span<const ReportRun> runs) {
  return by_layer(
      {"explained",
       "Share of δ's variance that can be predicted",
       "Held-out R², percent. Below 0: worse than the mean.",
       {{"run", "run"}, {"layer", "layer"}, {"by", "predicted from"}, {"r2", "R², %", 2, true}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        constexpr std::pair<const char*, const char*> kWays[] = {
            {"input_token", "input token"},
            {"target_token", "target token"},
            {"context", "context"},
            {"both", "token and context"},
            {"surface/ridge", "surface features, ridge"},
            {"surface/forest", "surface features, forest"},
            {"surface_clipped/ridge", "surface features, ridge, tails clipped"},
            {"surface_clipped/forest", "surface features, forest, tails clipped"}};
        for (const auto& [path, name] : kWays) {
          const std::string full = std::string("explained/") + path;
          if (find(in, full) == nullptr) continue;
          table.rows.push_back({run, layer, std::string(name), figure(in, full, 100)});
        }
      });
}

Table lists(std::span<const ReportRun> runs) {
  return by_layer(
      {"lists",
       "No-Fly lists: does a token's need carry over to another text?",
       "Correlation of the tokens' mean δ on text A and text B. The ceiling is what their sample "
       "sizes allow even if the need were a property of the token alone. Tokens are counted by "
       "what "
       "goes in (what a router sees) and by what is to be predicted (the paper).",
       {{"run", "run"},
        {"layer", "layer"},
        {"by", "tokens counted by"},
        {"correlation", "r of A and B", 3, true},
        {"ceiling", "ceiling", 3},
        {"reliability_a", "reliability on A", 3, true},
        {"reliability_b", "on B", 3, true},
        {"shared", "tokens in both"},
        {"listed", "listed on A"},
        {"found", "found in B"},
        {"still_pct", "still listed, %", 1},
        {"flipped_pct", "flipped, %", 1}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        for (const char* by : {"input", "target"}) {
          const json& l = items(in, std::string("no_fly/") + by);
          if (l.empty()) continue;
          table.rows.push_back({run, layer, std::string(by), figure(l, "correlation"),
                                number(l, "ceiling"), figure(l, "reliability_a"),
                                figure(l, "reliability_b"), number(l, "types_shared"),
                                number(l, "listed"), number(l, "found"), number(l, "still_pct"),
                                number(l, "flipped_pct")});
        }
      });
}

Table listed(std::span<const ReportRun> runs) {
  return by_layer(
      {"listed",
       "Tokens on the lists",
       "",
       {{"run", "run"},
        {"layer", "layer"},
        {"by", "counted by"},
        {"token", "token"},
        {"n", "times in A"},
        {"mean", "mean δ in A", 3, true},
        {"n_b", "times in B"},
        {"mean_b", "mean δ in B", 3, true}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        for (const char* by : {"input", "target"}) {
          for (const json& t : items(in, fmt::format("no_fly/{}/tokens", by))) {
            table.rows.push_back({run, layer, std::string(by), text(t, "text"), number(t, "n"),
                                  number(t, "mean"), number(t, "n_b"), number(t, "mean_b")});
          }
        }
      });
}

Table harm(std::span<const ReportRun> runs) {
  return by_layer({"harm",
                   "The shape of δ on both texts",
                   "Harm is the sum of the positive δ.",
                   {{"run", "run"},
                    {"layer", "layer"},
                    {"text", "text"},
                    {"delta_ppl_pct", "all linear, ΔPPL, %", 2, true},
                    {"mean", "mean δ", 4, true},
                    {"sd", "sd", 3},
                    {"skew", "skew", 1, true},
                    {"excess_kurtosis", "excess kurtosis", 0, true},
                    {"positive", "δ > 0, %", 1},
                    {"within_0.05", "|δ| < 0.05, %", 1},
                    {"worst_1", "harm by the worst 1 %, %", 1},
                    {"worst_5", "by 5 %, %", 1},
                    {"worst_10", "by 10 %, %", 1}},
                   {}},
                  runs, [](const std::string& run, double layer, const json& in, Table& table) {
                    for (const char* name : {"a", "b"}) {
                      const json& d = items(in, std::string("delta/") + name);
                      if (d.empty()) continue;
                      std::vector<Cell> row = {run,
                                               layer,
                                               std::string(name[0] == 'a' ? "A" : "B"),
                                               figure(in, std::string("all_linear/") + name),
                                               number(d, "mean"),
                                               number(d, "sd"),
                                               number(d, "skew"),
                                               number(d, "excess_kurtosis"),
                                               figure(d, "positive", 100),
                                               figure(d, "within_0.05", 100)};
                      const json& worst = items(d, "harm_in_worst");
                      for (size_t i = 0; i < 3; ++i) {
                        row.push_back(i < worst.size() ? figure(worst[i], "", 100) : Cell(kNone));
                      }
                      table.rows.push_back(std::move(row));
                    }
                  });
}

Table stability(std::span<const ReportRun> runs) {
  return by_layer(
      {"stability",
       "Is it the same gate elsewhere?",
       "The gate trained on two parts of the data: likeness of the two, and the AUC of each.",
       {{"run", "run"},
        {"layer", "layer"},
        {"between", "trained on"},
        {"cosine", "cosine of weights", 3, true},
        {"score_correlation", "correlation of scores", 3, true},
        {"auc_first", "AUC of the first", 3},
        {"auc_second", "AUC of the second", 3}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        for (const auto& [name, pair] : items(in, "stability").items()) {
          const bool texts = name == "texts";
          table.rows.push_back({run, layer, texts ? "A, tested on B; B, tested on A" : spaced(name),
                                number(pair, "cosine"), number(pair, "score_correlation"),
                                figure(pair, texts ? "auc_of_a_on_b" : "auc_first"),
                                figure(pair, texts ? "auc_of_b_on_a" : "auc_second")});
        }
      });
}

Table surface(std::span<const ReportRun> runs) {
  return by_layer({"surface",
                   "Surface features and δ",
                   "Correlation over all tokens of text A.",
                   {{"run", "run"},
                    {"layer", "layer"},
                    {"feature", "feature"},
                    {"correlation", "correlation with δ", 3, true}},
                   {}},
                  runs, [](const std::string& run, double layer, const json& in, Table& table) {
                    for (const auto& [name, f] : items(in, "surface/delta_correlation").items()) {
                      table.rows.push_back({run, layer, spaced(name), figure(f, "")});
                    }
                  });
}

Table clusters(std::span<const ReportRun> runs) {
  return by_layer(
      {"clusters",
       "Clusters of MLP inputs",
       "For how many of a cluster's test tokens the linear map is fine (δ at or below the median). "
       "A "
       "cluster that needs the MLP always or never would lie at 0 or 100 %.",
       {{"run", "run"},
        {"layer", "layer"},
        {"cluster", "cluster"},
        {"tokens", "test tokens"},
        {"linear_ok", "linear is fine, %", 1},
        {"mean_delta", "mean δ", 3, true}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        for (const json& c : items(in, "clusters/list")) {
          const double few = number(c, "too_few");
          const std::string too_few = fmt::format("too few ({:.0f})", few);
          table.rows.push_back({run, layer, number(c, "cluster"), number(c, "test_tokens"),
                                std::isnan(few) ? figure(c, "linear_ok", 100) : Cell(too_few),
                                std::isnan(few) ? figure(c, "mean_delta") : Cell(too_few)});
        }
      });
}

Table extremes(std::span<const ReportRun> runs) {
  return by_layer(
      {"extremes",
       "The gate's extreme tokens in their sentences",
       "",
       {{"run", "run"},
        {"layer", "layer"},
        {"end", "surest of"},
        {"score", "score", 2, true},
        {"before", "before"},
        {"token", "token"},
        {"after", "after"}},
       {}},
      runs, [](const std::string& run, double layer, const json& in, Table& table) {
        for (const auto& [key, end] : {std::pair("most_linear", "the linear map"),
                                       std::pair("most_nonlinear", "the full MLP")}) {
          for (const json& t : items(in, std::string("gate_direction/") + key)) {
            table.rows.push_back({run, layer, std::string(end), number(t, "score"),
                                  text(t, "before"), text(t, "token"), text(t, "after")});
          }
        }
      });
}

}  // namespace

std::vector<Table> analysis_tables(std::span<const ReportRun> runs) {
  std::vector<Table> tables;
  for (auto make : {statements, probes, parts, explained, lists, listed, harm, stability, surface,
                    clusters, extremes}) {
    Table table = make(runs);
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace halflin
