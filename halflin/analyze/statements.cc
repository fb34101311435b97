#include "halflin/analyze/statements.h"

#include <cmath>
#include <functional>
#include <optional>

#include "halflin/base/error.h"
#include "halflin/measure/statistics.h"

namespace halflin {

using nlohmann::json;

namespace {

enum class Verdict { kHolds, kFails, kUndecided };

const char* name_of(Verdict verdict) {
  return verdict == Verdict::kHolds   ? "holds"
         : verdict == Verdict::kFails ? "does not hold"
                                      : "undecided";
}

struct Figure {
  double value = 0, lo = 0, hi = 0;
  double ceiling = 1;  // of a correlation, where sample sizes set one
};

using Find = std::function<std::optional<Figure>(const json& layer)>;
using Rule = std::function<Verdict(const Figure&)>;

// The figure at a JSON pointer, unless it is missing or marked too_few.
std::optional<Figure> figure_at(const json& layer, const std::string& pointer) {
  const json::json_pointer at(pointer);
  if (!layer.contains(at)) return std::nullopt;
  const json& found = layer.at(at);
  if (found.contains("too_few") || !found.at("value").is_number()) return std::nullopt;
  return Figure{found.at("value"), found.at("ci_lo"), found.at("ci_hi")};
}

Find at(const std::string& pointer) {
  return [pointer](const json& layer) { return figure_at(layer, pointer); };
}

// Whole interval below `limit` / above it.
Rule below(double limit) {
  return [limit](const Figure& f) {
    return f.hi < limit ? Verdict::kHolds : f.lo > limit ? Verdict::kFails : Verdict::kUndecided;
  };
}
Rule above(double limit) {
  return [limit](const Figure& f) {
    return f.lo > limit ? Verdict::kHolds : f.hi < limit ? Verdict::kFails : Verdict::kUndecided;
  };
}

struct Statement {
  const char* id;
  const char* statement;
  const char* published;
  const char* measured;
  const char* rule;
};

json judge(const Statement& s, const std::vector<json>& layers, const Find& find,
           const Rule& rule) {
  json out = {{"id", s.id},
              {"statement", s.statement},
              {"published", s.published},
              {"measured", s.measured},
              {"rule", s.rule}};
  Figure mean{0, 0, 0, 0};
  size_t count = 0, hold = 0, fail = 0;
  for (const json& layer : layers) {
    const std::optional<Figure> found = find(layer);
    if (!found) continue;
    ++count;
    mean.value += found->value;
    mean.lo += found->lo;
    mean.hi += found->hi;
    mean.ceiling += found->ceiling;
    const Verdict verdict = rule(*found);
    hold += verdict == Verdict::kHolds;
    fail += verdict == Verdict::kFails;
  }
  out["layers"] = count;
  out["layers_hold"] = hold;
  out["layers_fail"] = fail;
  if (count == 0) {
    out["value"] = out["ci_lo"] = out["ci_hi"] = nullptr;
    out["verdict"] = name_of(Verdict::kUndecided);
    out["note"] = "too few tokens, types or windows in every layer";
    return out;
  }
  for (double* v : {&mean.value, &mean.lo, &mean.hi, &mean.ceiling}) {
    *v /= static_cast<double>(count);
  }
  out["value"] = mean.value;
  out["ci_lo"] = mean.lo;
  out["ci_hi"] = mean.hi;
  out["verdict"] = name_of(rule(mean));
  return out;
}

json list_transfer(const std::vector<json>& layers, const char* id, const char* statement,
                   const char* published, const std::string& index) {
  const Find find = [index](const json& layer) {
    std::optional<Figure> found = figure_at(layer, "/no_fly/" + index + "/correlation");
    if (found) found->ceiling = layer.at("no_fly").at(index).at("ceiling");
    return found;
  };
  json out = judge({id, statement, published,
                    "correlation of per-token mean losses between the texts, tokens seen 10 times "
                    "or more on both",
                    "holds: interval below half of what the sample sizes allow (the ceiling), and "
                    "not above 0.05; does not hold: above 0.05"},
                   layers, find, [](const Figure& f) {
                     if (f.lo > 0.05) return Verdict::kFails;
                     return f.hi < 0.5 * f.ceiling ? Verdict::kHolds : Verdict::kUndecided;
                   });
  double ceiling = 0;
  size_t count = 0;
  for (const json& layer : layers) {
    if (const auto found = find(layer)) {
      ceiling += found->ceiling;
      ++count;
    }
  }
  if (count != 0) {
    ceiling /= static_cast<double>(count);
    out["ceiling"] = ceiling;
    out["note"] = fmt::format("ceiling {:.2f}", ceiling);
  }
  return out;
}

// Layers that are better linear, after Holm's correction over the layers.
json better_linear(const std::vector<json>& layers) {
  json out = {{"id", "better_linear"},
              {"statement", "some layers are better with a linear MLP"},
              {"published", "four linearised layers better after training; gated, 11 of 36 layers"},
              {"measured", "layers whose all-linear cost in perplexity on text A lies below 0"},
              {"rule",
               "holds: at least one layer's interval lies below 0 and its p-value, Holm-adjusted, "
               "below 0.05; does not hold: every layer's interval lies above 0"}};
  std::vector<double> p, lo, hi;
  for (const json& layer : layers) {
    if (const auto found = figure_at(layer, "/all_linear/a")) {
      p.push_back(layer.at("all_linear").at("a").at("p"));
      lo.push_back(found->lo);
      hi.push_back(found->hi);
    }
  }
  const std::vector<double> adjusted = holm(p);
  size_t better = 0, possible = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    better += hi[i] < 0 && adjusted[i] < 0.05;
    possible += lo[i] < 0;
  }
  out["layers"] = p.size();
  out["layers_hold"] = better;
  out["layers_fail"] = p.size() - possible;
  out["value"] = better;
  out["ci_lo"] = better;
  out["ci_hi"] = possible;
  out["note"] = "number of layers; the interval's upper end counts those that may be";
  out["verdict"] = name_of(p.empty()       ? Verdict::kUndecided
                           : better > 0    ? Verdict::kHolds
                           : possible == 0 ? Verdict::kFails
                                           : Verdict::kUndecided);
  return out;
}

json clusters(const std::vector<json>& layers) {
  json out = {
      {"id", "clusters"},
      {"statement", "no cluster of inputs needs the MLP always or never"},
      {"published", "0 of 20 clusters in each of three layers"},
      {"measured", "clusters in which linear is fine for under 10 % or over 90 % of tokens"},
      {"rule",
       "holds: in every cluster with enough tokens the interval of that share lies inside "
       "10 to 90 %; does not hold: in one of them it lies outside"}};
  size_t extreme = 0, mixed = 0, judged = 0, counted = 0, hold = 0, fail = 0;
  for (const json& layer : layers) {
    if (!layer.contains("clusters")) continue;
    const json& c = layer.at("clusters");
    const size_t outside = c.at("always").get<size_t>() + c.at("never").get<size_t>();
    const size_t inside = c.at("mixed").get<size_t>();
    const size_t enough = c.at("clusters").get<size_t>() - c.at("too_few").get<size_t>();
    extreme += outside;
    mixed += inside;
    judged += enough;
    ++counted;
    hold += enough > 0 && inside == enough;
    fail += outside > 0;
  }
  out["layers"] = counted;
  out["layers_hold"] = hold;
  out["layers_fail"] = fail;
  out["value"] = extreme;
  out["ci_lo"] = extreme;
  out["ci_hi"] = judged - mixed;
  out["note"] = fmt::format(
      "of {} clusters with enough tokens; the upper end counts those that "
      "may be",
      judged);
  out["verdict"] = name_of(extreme > 0                     ? Verdict::kFails
                           : judged > 0 && mixed == judged ? Verdict::kHolds
                                                           : Verdict::kUndecided);
  return out;
}

json elsewhere(const char* id, const char* statement, const char* published, const char* command) {
  return {{"id", id},
          {"statement", statement},
          {"published", published},
          {"measured", fmt::format("not by an analysis: {}", command)},
          {"rule", "none"},
          {"layers", 0},
          {"layers_hold", 0},
          {"layers_fail", 0},
          {"value", nullptr},
          {"ci_lo", nullptr},
          {"ci_hi", nullptr},
          {"note", command},
          {"verdict", name_of(Verdict::kUndecided)}};
}

// Of two figures the larger one.
Find larger(const std::string& first, const std::string& second) {
  return [first, second](const json& layer) {
    const auto l = figure_at(layer, first), r = figure_at(layer, second);
    if (!l || !r) return l ? l : r;
    return l->value >= r->value ? l : r;
  };
}

}  // namespace

json judge_statements(const std::vector<json>& layers) {
  json out = json::array();
  out.push_back(list_transfer(layers, "token_lists_target",
                              "need is no property of a token: lists do not transfer, by target",
                              "r = 0.041 and -0.062", "target"));
  out.push_back(list_transfer(layers, "token_lists_input",
                              "need is no property of a token: lists do not transfer, by input",
                              "r below 0.05", "input"));
  out.push_back(judge({"token_variance", "token identity does not predict the need", "none",
                       "held-out R2 of shrunken means by input token",
                       "holds: interval below 0.013; does not hold: above"},
                      layers, at("/explained/input_token"), below(0.013)));
  out.push_back(judge({"contextual", "the gate reads context rather than the token",
                       "0.005, 0.007, 0.038 in GPT-2 Medium, by its own files",
                       "AUC of the context part's gate minus the token part's, norm frozen",
                       "holds: interval above 0; does not hold: below"},
                      layers, at("/gates/auc_differences/context_minus_token"), above(0)));
  out.push_back(
      judge({"fully_contextual", "routing is fully contextual: the token alone says nothing",
             "0.533, 0.568, 0.567 in GPT-2 Medium, by its own files",
             "AUC of the token part's gate", "holds: interval below 0.52; does not hold: above"},
            layers, at("/gates/auc/token"), below(0.52)));
  out.push_back(
      judge({"weakly_predictable", "single tokens are weakly predictable: AUC 0.54 to 0.61",
             "0.54 to 0.61", "AUC of the whole input's gate",
             "holds: interval above 0.5 and meets 0.54 to 0.61; does not hold: outside it"},
            layers, at("/gates/auc/whole"), [](const Figure& f) {
              if (f.hi < 0.54 || f.lo > 0.61) return Verdict::kFails;
              return f.lo > 0.5 ? Verdict::kHolds : Verdict::kUndecided;
            }));
  out.push_back(judge({"surface_features", "surface features explain under 1.3 %", "R2 below 0.013",
                       "held-out R2 of 13 features, the better of ridge and forest",
                       "holds: interval below 0.013; does not hold: above"},
                      layers, larger("/explained/surface/ridge", "/explained/surface/forest"),
                      below(0.013)));
  out.push_back(judge({"mostly_noise", "token and context together predict little of delta", "none",
                       "held-out R2 of token means and context together",
                       "holds: interval below 0.05; does not hold: above"},
                      layers, at("/explained/both"), below(0.05)));
  out.push_back(clusters(layers));
  out.push_back(judge({"heavy_tail", "the need sits in a sparse tail of tokens", "heavily skewed",
                       "share of all harm in the worst 10 % of tokens",
                       "holds: interval above 0.5; does not hold: below"},
                      layers, at("/delta/a/harm_in_worst/2"), above(0.5)));
  out.push_back(judge({"near_linear", "most MLP computations are near linear", "most",
                       "share of tokens whose loss changes by under 0.05 nats",
                       "holds: interval above 0.5; does not hold: below"},
                      layers, at("/delta/a/within_0.05"), above(0.5)));
  out.push_back(judge({"function_words", "function words need the MLP no more than others",
                       "r = 0.002, -0.050, -0.038", "correlation of delta and is-function-word",
                       "holds: interval inside -0.05 to 0.05; does not hold: outside it"},
                      layers, at("/surface/delta_correlation/is_function_word"),
                      [](const Figure& f) {
                        if (f.lo > 0.05 || f.hi < -0.05) return Verdict::kFails;
                        return f.lo > -0.05 && f.hi < 0.05 ? Verdict::kHolds : Verdict::kUndecided;
                      }));
  out.push_back(judge({"gate_transfers", "a gate carries over to another text", "none",
                       "AUC on text B of the gate trained on text A",
                       "holds: interval above 0.5; does not hold: below"},
                      layers, at("/stability/texts/auc_of_a_on_b"), above(0.5)));
  out.push_back(better_linear(layers));
  out.push_back(elsewhere("routed_share", "25 to 56 % of tokens linear at under 1 % cost",
                          "mean 39.9 % in GPT-2 Medium", "halflin sweep"));
  out.push_back(elsewhere("progressive", "five layers linearised one after another cost nothing",
                          "27.17 PPL", "halflin linearize"));
  out.push_back(elsewhere("two_phase", "two-phase training with gates beats fine-tuning alone",
                          "-17.3 % against -14.8 %", "halflin finetune"));
  return out;
}

}  // namespace halflin
