#include "halflin/analyze/statements.h"

#include <gtest/gtest.h>

namespace halflin {
namespace {

using nlohmann::json;

json fig(double value, double lo, double hi) {
  return {{"value", value}, {"ci_lo", lo}, {"ci_hi", hi}};
}

json statement(const json& statements, const std::string& id) {
  for (const json& s : statements) {
    if (s.at("id") == id) return s;
  }
  return nullptr;
}

json with_lists(const json& correlation, double ceiling) {
  json layer;
  layer["no_fly"]["target"] = {{"correlation", correlation}, {"ceiling", ceiling}};
  return layer;
}

std::string transfer(const std::vector<json>& layers) {
  return statement(judge_statements(layers), "token_lists_target").at("verdict");
}

TEST(Statements, WeighTransferAgainstTheCeiling) {
  EXPECT_EQ(transfer({with_lists(fig(0.02, -0.1, 0.14), 0.9)}), "holds");
  EXPECT_EQ(transfer({with_lists(fig(0.3, 0.1, 0.5), 0.9)}), "does not hold");
  // A does not agree with itself either: r near 0 proves nothing.
  EXPECT_EQ(transfer({with_lists(fig(0.02, -0.1, 0.14), 0.1)}), "undecided");
  EXPECT_EQ(transfer({with_lists(fig(0.2, -0.1, 0.5), 0.9)}), "undecided");
  json few = fig(0.3, 0.1, 0.5);
  few["too_few"] = 3;
  EXPECT_EQ(transfer({with_lists(few, 0.9)}), "undecided");
}

TEST(Statements, AverageTheLayers) {
  const json s = statement(judge_statements({with_lists(fig(0.0, -0.1, 0.1), 0.8),
                                             with_lists(fig(0.2, 0.1, 0.3), 0.6), json::object()}),
                           "token_lists_target");
  EXPECT_EQ(s.at("layers"), 2);
  EXPECT_EQ(s.at("layers_hold"), 1);
  EXPECT_EQ(s.at("layers_fail"), 1);
  EXPECT_NEAR(s.at("value").get<double>(), 0.1, 1e-12);
  EXPECT_NEAR(s.at("ci_lo").get<double>(), 0.0, 1e-12);
  EXPECT_NEAR(s.at("ci_hi").get<double>(), 0.2, 1e-12);
  EXPECT_NEAR(s.at("ceiling").get<double>(), 0.7, 1e-12);
  EXPECT_EQ(s.at("verdict"), "holds");
}

TEST(Statements, FollowTheirRules) {
  const auto verdict = [](const std::string& id, const json& layer) {
    return statement(judge_statements({layer}), id).at("verdict").get<std::string>();
  };
  const auto at = [](const std::string& pointer, const json& value) {
    json layer;
    layer[json::json_pointer(pointer)] = value;
    return layer;
  };
  const auto whole = [&](double lo, double hi) {
    return verdict("weakly_predictable", at("/gates/auc/whole", fig(0.5 * (lo + hi), lo, hi)));
  };
  EXPECT_EQ(whole(0.55, 0.58), "holds");
  EXPECT_EQ(whole(0.60, 0.66), "holds");
  EXPECT_EQ(whole(0.62, 0.66), "does not hold");
  EXPECT_EQ(whole(0.45, 0.53), "does not hold");
  EXPECT_EQ(whole(0.49, 0.55), "undecided");

  json surface = at("/explained/surface/ridge", fig(0.004, 0.001, 0.008));
  EXPECT_EQ(verdict("surface_features", surface), "holds");
  surface["explained"]["surface"]["forest"] = fig(0.03, 0.02, 0.04);  // the better one counts
  EXPECT_EQ(verdict("surface_features", surface), "does not hold");

  const auto words = [&](double lo, double hi) {
    return verdict("function_words",
                   at("/surface/delta_correlation/is_function_word", fig(0.5 * (lo + hi), lo, hi)));
  };
  EXPECT_EQ(words(-0.03, 0.04), "holds");
  EXPECT_EQ(words(0.06, 0.1), "does not hold");
  EXPECT_EQ(words(0.02, 0.1), "undecided");

  json clusters = {{"clusters", 20}, {"too_few", 4}, {"always", 0}, {"never", 0}, {"mixed", 16}};
  EXPECT_EQ(verdict("clusters", {{"clusters", clusters}}), "holds");
  clusters["mixed"] = 15;
  EXPECT_EQ(verdict("clusters", {{"clusters", clusters}}), "undecided");
  clusters["never"] = 1;
  EXPECT_EQ(verdict("clusters", {{"clusters", clusters}}), "does not hold");
  EXPECT_EQ(verdict("two_phase", json::object()), "undecided");
}

TEST(Statements, CorrectBetterLayersForTheirNumber) {
  const auto layer = [](double lo, double hi, double p) {
    json out;
    out["all_linear"]["a"] = fig(0.5 * (lo + hi), lo, hi);
    out["all_linear"]["a"]["p"] = p;
    return out;
  };
  const auto verdict = [](const std::vector<json>& layers) {
    return statement(judge_statements(layers), "better_linear").at("verdict").get<std::string>();
  };
  EXPECT_EQ(verdict({layer(-1, -0.1, 0.03)}), "holds");
  EXPECT_EQ(verdict({layer(-1, -0.1, 0.03), layer(-1, 1, 0.9)}), "undecided");  // Holm: 0.06
  EXPECT_EQ(verdict({layer(0.1, 1, 0.001), layer(2, 3, 0.001)}), "does not hold");
  EXPECT_EQ(verdict({}), "undecided");
}

TEST(Statements, SurviveLayersThatFailed) {
  const json statements = judge_statements({{{"layer", 0}, {"failed", "3 not finite"}}});
  for (const json& s : statements) EXPECT_EQ(s.at("verdict"), "undecided") << s;
}

}  // namespace
}  // namespace halflin
