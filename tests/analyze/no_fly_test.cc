#include "halflin/analyze/no_fly.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halflin/base/random.h"
#include "tests/analyze/reference_data.h"
#include "tests/analyze/reference_values.h"

namespace halflin {
namespace {

struct Corpus {
  std::vector<int32_t> token;
  std::vector<float> delta;
  std::vector<uint32_t> window;
  TokenDeltas view() const { return {token, delta, window, 40}; }
};

// 100 tokens, 40 windows; each token's true mean is effect(token), the noise has the given sd.
template <class Effect>
Corpus make_corpus(uint64_t seed, double sd, const Effect& effect) {
  Random random(seed, "corpus");
  Corpus out;
  for (uint32_t w = 0; w < 40; ++w) {
    for (int i = 0; i < 100; ++i) {
      const auto token = static_cast<int32_t>(random.below(100));
      out.token.push_back(token);
      out.window.push_back(w);
      out.delta.push_back(static_cast<float>(effect(token) + sd * random.normal()));
    }
  }
  return out;
}

NoFlyResult compare(const Corpus& a, const Corpus& b) {
  ThreadPool pool(2);
  return no_fly(pool, a.view(), b.view(), draw_windows(40, 1000, 1), draw_windows(40, 1000, 2), {},
                0, 0.95);
}

double trait(int32_t token) { return token % 2 == 0 ? 0.3 : -0.3; }

TEST(NoFly, FindsWhatTransfers) {
  const NoFlyResult r = compare(make_corpus(1, 0.5, trait), make_corpus(2, 0.5, trait));
  EXPECT_GT(r.shared, 95u);
  EXPECT_GE(r.listed, 45u);
  EXPECT_GE(r.still, 45u);
  EXPECT_LT(r.flipped, 3u);
  EXPECT_GT(r.correlation.lo, 0.85);
  EXPECT_GT(r.ceiling, 0.9);
  EXPECT_NEAR(r.reliability_a.estimate, 0.9, 0.05);  // 0.09 / (0.09 + 0.25 / 40) = 0.935
  EXPECT_EQ(r.tokens.size(), r.listed);
  for (size_t i = 1; i < r.tokens.size(); ++i) EXPECT_GE(r.tokens[i - 1].mean, r.tokens[i].mean);
}

TEST(NoFly, SeesThatAnotherTextDisagrees) {
  // Text A agrees with itself, text B with itself, and they not with each other.
  const auto other = [](int32_t token) { return trait(token / 2); };
  const NoFlyResult r = compare(make_corpus(1, 0.5, trait), make_corpus(2, 0.5, other));
  EXPECT_GT(r.ceiling, 0.85);
  EXPECT_LT(std::abs(r.correlation.estimate), 0.3);
  EXPECT_LT(r.correlation.hi, 0.5 * r.ceiling);
}

TEST(NoFly, SaysWhenNothingCouldAgree) {
  // Pure noise: r is near 0 and so is the ceiling, which then proves nothing.
  const auto nothing = [](int32_t) { return 0.0; };
  const NoFlyResult r = compare(make_corpus(1, 1, nothing), make_corpus(2, 1, nothing));
  EXPECT_LT(r.ceiling, 0.4);
  EXPECT_LT(r.correlation.lo, 0);
  EXPECT_GT(r.correlation.hi, 0);
  EXPECT_LT(r.reliability_a.lo, 0.1);
}

TEST(NoFly, CoversTheTruthAboutAsOftenAsItSays) {
  // With true means N(0, 0.2^2) and noise of sd 0.1 x sqrt(40) = 0.63, about 40 tokens a type,
  // observed correlation has the expectation 0.04 / (0.04 + 0.01) = 0.8.
  size_t held = 0;
  constexpr int kTrials = 60;
  for (int i = 0; i < kTrials; ++i) {
    Random random(static_cast<uint64_t>(i), "effects");
    std::vector<double> effects(100);
    for (double& v : effects) v = 0.2 * random.normal();
    double variance = 0;
    for (const double v : effects) variance += v * v / 100;
    const auto effect = [&](int32_t token) { return effects[static_cast<size_t>(token)]; };
    const NoFlyResult r = compare(make_corpus(static_cast<uint64_t>(1000 + i), 0.6325, effect),
                                  make_corpus(static_cast<uint64_t>(2000 + i), 0.6325, effect));
    const double expected = variance / (variance + 0.4 / 39.5);
    held += r.correlation.lo < expected && expected < r.correlation.hi;
  }
  EXPECT_GT(held, static_cast<size_t>(0.85 * kTrials));
}

TEST(NoFly, CorrelationEqualsScipys) {
  const auto data = reference::make_token_data();
  const size_t half = reference::kTokens / 2;
  Corpus a, b;
  for (size_t t = 0; t < reference::kTokens; ++t) {
    Corpus& to = t < half ? a : b;
    to.token.push_back(data.group[t]);
    to.delta.push_back(data.delta[t]);
    to.window.push_back(data.window[t] % 12);
  }
  const NoFlyResult r = compare(a, b);
  EXPECT_EQ(static_cast<double>(r.shared), reference::kGroupsShared);
  EXPECT_NEAR(r.correlation.estimate, reference::kGroupCorrelation, 1e-9);
}

TEST(NoFly, CountsByTheRules) {
  // One token: 10 times, 7 positive, mean 0.1. Another 9 times. A third listed on A, flipped on B.
  Corpus a, b;
  const auto add = [](Corpus& to, int32_t token, float delta, int times) {
    for (int i = 0; i < times; ++i) {
      to.token.push_back(token);
      to.delta.push_back(delta);
      to.window.push_back(static_cast<uint32_t>(i % 40));
    }
  };
  add(a, 1, 0.4f, 7), add(a, 1, -0.6f, 3), add(a, 2, 5.f, 9), add(a, 3, 0.06f, 20);
  add(a, 4, 0.4f, 6), add(a, 4, -0.1f, 4);  // 60 % positive is not over 60 %
  add(b, 1, 0.2f, 5), add(b, 3, -0.01f, 6), add(b, 2, 1.f, 50);
  const NoFlyResult r = compare(a, b);
  EXPECT_EQ(r.frequent, 3u);
  EXPECT_EQ(r.listed, 2u);
  EXPECT_EQ(r.found, 2u);
  EXPECT_EQ(r.still, 1u);
  EXPECT_EQ(r.flipped, 1u);
  EXPECT_EQ(r.shared, 0u);
  EXPECT_TRUE(r.correlation.too_few);
  EXPECT_TRUE(r.reliability_a.too_few);
  EXPECT_EQ(r.tokens[0].id, 1);
  EXPECT_NEAR(r.tokens[0].positive, 0.7, 1e-12);
  EXPECT_NEAR(r.tokens[1].mean_elsewhere, -0.01, 1e-6);
}

}  // namespace
}  // namespace halflin
