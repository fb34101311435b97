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

TEST(PricedPath, LeavesOutWhatHardlyAnybodyTakes) {
  const Tokens tokens(100);
  std::vector<FittedOption> options;
  options.push_back(option(0, 0.02, tokens.rough));
  EXPECT_TRUE(priced_path(options, 1e-9).options.empty());
  EXPECT_EQ(priced_path(options, 10).options.size(), 1u);
  options.front().gate_cost = 0.011;  // more than half of what all would save
  EXPECT_TRUE(priced_path(options, 10).options.empty());
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
