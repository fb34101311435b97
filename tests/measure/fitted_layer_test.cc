#include "halflin/measure/fitted_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/base/random.h"

namespace halflin {
namespace {

// An option whose gate reads the harm's logarithm from one feature of x.
FittedOption option(size_t feature, double saved, const std::vector<double>& harm) {
  FittedOption out;
  out.packed = std::make_shared<CheapPath>();
  out.saved = saved;
  out.sink_score = std::numeric_limits<float>::lowest();
  out.gate.weight.assign(2, 0.f);
  out.gate.weight[feature] = -1;
  for (const double h : harm) out.score.push_back(static_cast<float>(-std::log(h)));
  out.order.resize(harm.size());
  std::iota(out.order.begin(), out.order.end(), 0u);
  std::sort(out.order.begin(), out.order.end(),
            [&](uint32_t a, uint32_t b) { return out.score[a] > out.score[b]; });
  return out;
}

// Harms of a rough and a fine path, and x with their logarithms.
struct Tokens {
  std::vector<double> rough, fine;

  explicit Tokens(size_t count) {
    Random random(3, "tokens");
    for (size_t t = 0; t < count; ++t) {
      rough.push_back(std::exp(6 * random.uniform() - 6));
      fine.push_back(rough.back() * 0.1 * (0.5 + random.uniform()));
    }
  }
  std::vector<float> x(size_t t) const {
    return {static_cast<float>(std::log(rough[t])), static_cast<float>(std::log(fine[t]))};
  }
};

TEST(PricedPath, OneOptionIsTakenWhereItsHarmIsBelowWhatItSaves) {
  const Tokens tokens(500);
  const std::vector<FittedOption> options = [&] {
    std::vector<FittedOption> out;
    out.push_back(option(0, 0.02, tokens.rough));
    return out;
  }();
  for (const double price : {1.0, 5.0, 20.0}) {
    const MlpPath path = priced_path(options, price);
    ASSERT_EQ(path.options.size(), 1u);
    for (size_t t = 0; t < 500; ++t) {
      EXPECT_EQ(choose_route(path, tokens.x(t).data()), tokens.rough[t] < price * 0.02) << t;
    }
  }
}

TEST(PricedPath, GainsMoreThanIfEachOptionWereTakenWhereItPays) {
  const Tokens tokens(2000);
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, tokens.rough));
  options.push_back(option(1, 0.01, tokens.fine));
  const double price = 10;
  const MlpPath path = priced_path(options, price);
  ASSERT_EQ(path.options.size(), 2u);
  double gain = 0, greedy = 0, best = 0;
  for (size_t t = 0; t < 2000; ++t) {
    const double gains[] = {0, price * 0.02 - tokens.rough[t], price * 0.01 - tokens.fine[t]};
    gain += gains[choose_route(path, tokens.x(t).data())];
    greedy += gains[1] > 0 ? gains[1] : std::max(gains[2], 0.0);
    best += *std::max_element(gains, gains + 3);
  }
  EXPECT_GT(gain, greedy);
  EXPECT_GT(gain, 0.98 * best);
}

TEST(PricedPath, LetsNoSinkPass) {
  const Tokens tokens(100);
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, tokens.rough));
  options.front().sink_score = 2;  // a harm of exp(-2)
  const MlpPath path = priced_path(options, 1e6);
  for (size_t t = 0; t < 100; ++t) {
    EXPECT_EQ(choose_route(path, tokens.x(t).data()), tokens.rough[t] < std::exp(-2)) << t;
  }
}

TEST(PricedPath, SinksTakeNoPartInWhatAPathGains) {
  // All tokens but the first two have the score of a sink or less: what these two would save does
  // not pay for the gate, what all would save does.
  const Tokens tokens(100);
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, tokens.rough));
  options.front().gate_cost = 0.001;
  EXPECT_EQ(priced_path(options, 10).options.size(), 1u);
  options.front().sink_score = options.front().score[options.front().order[2]];
  EXPECT_TRUE(priced_path(options, 10).options.empty());
}

TEST(PricedPath, LeavesOutWhatDoesNotPayForItsGate) {
  const Tokens tokens(100);
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, tokens.rough));
  EXPECT_TRUE(priced_path(options, 1e-9).options.empty());
  const double price = 10;
  double gain = 0;  // of the tokens
  for (const double harm : tokens.rough) gain += std::max(price * 0.02 - harm, 0.0);
  options.front().gate_cost = 0.99 * gain / (price * 100);
  EXPECT_EQ(priced_path(options, price).options.size(), 1u);
  options.front().gate_cost = 1.01 * gain / (price * 100);
  EXPECT_TRUE(priced_path(options, price).options.empty());
  // The same of a cost that any token of the path causes.
  options.front().gate_cost = 0;
  options.front().fixed_cost = 0.99 * gain / (price * 100);
  EXPECT_EQ(priced_path(options, price).options.size(), 1u);
  options.front().fixed_cost = 1.01 * gain / (price * 100);
  EXPECT_TRUE(priced_path(options, price).options.empty());
}

TEST(PricedPath, APathOfFewTokensLeavesToThoseBesideIt) {
  // Three tokens of a hundred are harmed so much by the first path that they gain more by the
  // second.
  std::vector<double> rough(100, 0.01), fine(100, 0.001);
  for (const size_t t : {10, 50, 70}) rough[t] = 0.16;
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, rough));
  options.push_back(option(1, 0.01, fine));
  const double price = 10;
  const double gain = 3 * ((price * 0.01 - 0.001) - (price * 0.02 - 0.16));
  options[1].gate_cost = 0.99 * gain / (price * 3);  // three tokens reach the second gate
  ASSERT_EQ(priced_path(options, price).options.size(), 2u);
  options[1].gate_cost = 1.01 * gain / (price * 3);
  const MlpPath path = priced_path(options, price);
  ASSERT_EQ(path.options.size(), 1u);
  EXPECT_EQ(path.options.front().path, options[0].packed);
  // They come back to the first path, which still gains by them.
  const std::vector<float> x = {static_cast<float>(std::log(rough[10])), 0};
  EXPECT_EQ(choose_route(path, x.data()), 1u);
}

TEST(PricedPath, KeepsThePathsThatGainMost) {
  const Tokens tokens(1000);
  std::vector<double> finest = tokens.fine;
  for (double& harm : finest) harm *= 0.1;
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, tokens.rough));
  options.push_back(option(1, 0.015, tokens.fine));
  options.push_back(option(1, 0.005, finest));
  for (const double price : {0.5, 2.0, 8.0, 100.0}) {
    ASSERT_GE(priced_path(options, price).options.size(), 2u) << price;
    const MlpPath one = priced_path(options, price, /*most=*/1);
    ASSERT_EQ(one.options.size(), 1u);
    std::vector<double> gains;
    for (const FittedOption& o : options) {
      gains.push_back(0);
      for (const float score : o.score) {
        const double harm = std::exp(-static_cast<double>(score));
        gains.back() += std::max(price * o.saved - harm, 0.0);
      }
    }
    const auto best = std::max_element(gains.begin(), gains.end()) - gains.begin();
    EXPECT_EQ(one.options.front().path, options[static_cast<size_t>(best)].packed) << price;
    EXPECT_LE(priced_path(options, price, 2).options.size(), 2u);
  }
}

TEST(WholeLayerPath, IsTheOneThatGainsMost) {
  const Tokens tokens(10);
  std::vector<FittedOption> options;
  for (const auto& [saved, harm] : {std::pair(0.03, 0.4), std::pair(0.02, 0.1)}) {
    options.push_back(option(0, saved, tokens.rough));
    options.back().scale = 2;
    options.back().energy_all = harm / 2;
  }
  EXPECT_TRUE(whole_layer_path(options, 4).options.empty());
  EXPECT_EQ(whole_layer_path(options, 10).options.front().path, options[1].packed);
  EXPECT_EQ(whole_layer_path(options, 100).options.front().path, options[0].packed);
  EXPECT_FALSE(whole_layer_path(options, 10).options.front().gate.has_value());
}

}  // namespace
}  // namespace halflin
