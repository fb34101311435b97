#include "halflin/measure/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/mlp/gate.h"
#include "tests/mlp/reference_data.h"
#include "tests/mlp/reference_values.h"

namespace halflin {
namespace {

TEST(Random, EqualsAnIndependentXoshiro) {
  Random random(42, "test");
  for (const uint64_t expected : reference::kXoshiro) EXPECT_EQ(random.next(), expected);
}

TEST(Random, StreamsDifferAndMomentsFit) {
  EXPECT_NE(Random(1, "a").next(), Random(1, "b").next());
  EXPECT_NE(Random(1, "a").next(), Random(2, "a").next());
  Random random(1, "normal");
  double mean = 0, square = 0;
  size_t hits[5] = {};
  for (int i = 0; i < 100000; ++i) {
    const double v = random.normal();
    mean += v / 100000;
    square += v * v / 100000;
    ++hits[random.below(5)];
  }
  EXPECT_NEAR(mean, 0, 0.015);
  EXPECT_NEAR(square, 1, 0.02);
  for (const size_t h : hits) EXPECT_NEAR(static_cast<double>(h), 20000, 600);
  std::vector<int> order(50);
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(std::span(order));
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(order, sorted);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
}

TEST(Normal, QuantilesEqualScipys) {
  const double q[] = {1e-12, 1e-4, 0.025, 0.3, 0.5, 0.9, 0.999999};
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_NEAR(normal_quantile(q[i]), reference::kNormalQuantiles[i], 1e-10);
    EXPECT_NEAR(normal_cdf(normal_quantile(q[i])), q[i], 1e-12 * q[i] + 1e-15);
  }
  EXPECT_THROW(normal_quantile(0), Error);
}

TEST(Draws, EachTakesAsManyWindowsAsThereAre) {
  const BootstrapDraws draws = draw_windows(24, 100, 7);
  for (size_t r = 0; r < 100; ++r) {
    EXPECT_EQ(std::accumulate(draws.counts.row(r), draws.counts.row(r) + 24, 0), 24);
  }
  const BootstrapDraws again = draw_windows(24, 100, 7);
  EXPECT_TRUE(std::equal(draws.counts.span().begin(), draws.counts.span().end(),
                         again.counts.span().begin()));
  EXPECT_THROW(draw_windows(70000, 1, 7), Error);
}

struct Losses {
  std::vector<double> base, variant, count;
};

Losses reference_losses() {
  Losses out;
  reference::Lcg draw{777};
  for (int i = 0; i < 40; ++i) out.base.push_back(300 + 60 * draw());
  for (size_t i = 0; i < 40; ++i) {
    out.variant.push_back(out.base[i] + 1.0 + 12 * std::pow(draw() + 0.5, 4) - 1.5);
    out.count.push_back(100.0 + static_cast<double>(i % 3));
  }
  return out;
}

TEST(DeltaPpl, EqualsScipysBootstrap) {
  const Losses l = reference_losses();
  const BootstrapDraws draws = draw_windows(40, 100000, 1);
  const struct {
    IntervalKind kind;
    const double* expected;
  } cases[] = {{IntervalKind::kPercentile, reference::kBootstrapPercentile},
               {IntervalKind::kBCa, reference::kBootstrapBca}};
  for (const auto& c : cases) {
    const Interval found = delta_ppl(draws, l.base, l.variant, l.count, {0.95, c.kind});
    EXPECT_NEAR(found.estimate, c.expected[0], 1e-9);
    EXPECT_NEAR(found.lo, c.expected[1], 0.015);  // what 100,000 draws leave
    EXPECT_NEAR(found.hi, c.expected[2], 0.025);
    EXPECT_TRUE(found.excludes_zero());
    EXPECT_LT(found.p, 0.01);
  }
}

TEST(DeltaPpl, PAgreesWithTheInterval) {
  // Whatever the data: p is where an interval of confidence 1 - p ends at 0.
  Random random(4, "p");
  for (const IntervalKind kind : {IntervalKind::kPercentile, IntervalKind::kBCa}) {
    for (int trial = 0; trial < 20; ++trial) {
      const BootstrapDraws draws = draw_windows(30, 10000, static_cast<uint64_t>(trial));
      std::vector<double> base(30, 300.0), variant(30), count(30, 100.0);
      for (double& v : variant) v = 300 + 0.4 + std::exp(random.normal()) - 1.6;
      const Interval at = delta_ppl(draws, base, variant, count, {0.95, kind});
      if (at.p < 0.001 || at.p > 0.9) continue;
      const Interval wider = delta_ppl(draws, base, variant, count, {1 - 0.97 * at.p, kind});
      const Interval narrower = delta_ppl(draws, base, variant, count, {1 - 1.03 * at.p, kind});
      EXPECT_TRUE(wider.lo <= 0 && wider.hi >= 0) << at.p;
      EXPECT_TRUE(narrower.lo >= 0 || narrower.hi <= 0) << at.p;
    }
  }
}

TEST(DeltaPpl, CoversTheTruthAboutAsOftenAsItSays) {
  // 400 experiments of 40 windows; true mean difference 0.01 nats a token.
  Random random(9, "coverage");
  const double truth = 100 * std::expm1(0.01);
  const BootstrapDraws draws = draw_windows(40, 2000, 3);
  for (const IntervalKind kind : {IntervalKind::kPercentile, IntervalKind::kBCa}) {
    int covered = 0, rejected = 0;
    for (int trial = 0; trial < 400; ++trial) {
      std::vector<double> base(40), variant(40), null(40), count(40, 500.0);
      for (size_t w = 0; w < 40; ++w) {
        base[w] = 1500 + 200 * random.normal();  // far noisier than the difference: pairing matters
        const double skewed = std::exp(random.normal()) - std::exp(0.5);
        variant[w] = base[w] + 5 + 4 * skewed;
        null[w] = base[w] + 4 * skewed;
      }
      const Interval i = delta_ppl(draws, base, variant, count, {0.95, kind});
      covered += i.lo <= truth && truth <= i.hi;
      rejected += delta_ppl(draws, base, null, count, {0.95, kind}).p < 0.05;
    }
    // Skewed differences and 40 windows cost a bootstrap a few points; noise is +- 2.5 points.
    EXPECT_GT(covered, 0.86 * 400);
    EXPECT_LT(covered, 0.985 * 400);
    EXPECT_LT(rejected, 0.14 * 400);
    EXPECT_GT(rejected, 0.015 * 400);
  }
}

TEST(DeltaPpl, DegenerateInputsStayFinite) {
  const std::vector<double> base = {300, 310, 320, 330, 340, 350};
  const std::vector<double> count(6, 100.0);
  const BootstrapDraws draws = draw_windows(6, 1000, 1);
  // The variant is the model itself.
  const Interval same = delta_ppl(draws, base, base, count);
  EXPECT_EQ(same.estimate, 0);
  EXPECT_EQ(same.lo, 0);
  EXPECT_EQ(same.hi, 0);
  EXPECT_EQ(same.p, 1);
  EXPECT_FALSE(same.excludes_zero());
  // The same cost in every window: certain.
  std::vector<double> dearer = base;
  for (double& v : dearer) v += 1;
  const Interval certain = delta_ppl(draws, base, dearer, count);
  EXPECT_NEAR(certain.lo, 100 * std::expm1(0.01), 1e-9);
  EXPECT_NEAR(certain.hi, certain.lo, 1e-9);
  EXPECT_NEAR(certain.p, 2.0 / 1001, 1e-12);
  // Few windows: finite and marked.
  for (const size_t n : {1u, 2u, 4u}) {
    const Interval few = delta_ppl(draw_windows(n, 1000, 1), std::span(base).first(n),
                                   std::span(dearer).first(n), std::span(count).first(n));
    EXPECT_TRUE(few.too_few);
    EXPECT_FALSE(few.excludes_zero());
    EXPECT_EQ(few.p, 1);
    EXPECT_TRUE(std::isfinite(few.lo) && std::isfinite(few.hi));
  }
  const Interval none = delta_ppl(draw_windows(0, 1000, 1), {}, {}, {});
  EXPECT_TRUE(none.too_few);
  EXPECT_EQ(none.estimate, 0);
  std::vector<double> broken = base;
  broken[3] = std::nan("");
  EXPECT_THROW(delta_ppl(draws, base, broken, count), Error);
  EXPECT_THROW(delta_ppl(draws, base, std::span(base).first(5), count), Error);
  EXPECT_THROW(delta_ppl(draws, base, base, count, {1.5, IntervalKind::kBCa}), Error);
}

TEST(DeltaPpl, OneOutlyingWindowKeepsTheIntervalOrdered) {
  std::vector<double> base(24, 300.0), variant(24, 300.1), count(24, 100.0);
  variant[5] = 3000;
  const Interval i = delta_ppl(draw_windows(24, 10000, 2), base, variant, count);
  EXPECT_LE(i.lo, i.estimate);
  EXPECT_GE(i.hi, i.estimate);
  EXPECT_TRUE(std::isfinite(i.p));
}

TEST(Ratios, PerplexityR2AndShares) {
  const Losses l = reference_losses();
  const BootstrapDraws draws = draw_windows(40, 10000, 5);
  const Interval ppl = perplexity(draws, l.base, l.count);
  const double mean = std::accumulate(l.base.begin(), l.base.end(), 0.0) /
                      std::accumulate(l.count.begin(), l.count.end(), 0.0);
  EXPECT_NEAR(ppl.estimate, std::exp(mean), 1e-9);
  EXPECT_LT(ppl.lo, ppl.estimate);
  EXPECT_GT(ppl.hi, ppl.estimate);
  const Interval r2 = r2_interval(draws, l.count, l.base);
  EXPECT_NEAR(r2.estimate, 1 - 1 / mean, 1e-12);
  EXPECT_LT(r2.lo, r2.estimate);
  EXPECT_GT(r2.hi, r2.estimate);
  const Interval share = ratio(draws, l.count, l.base, 100);
  EXPECT_NEAR(share.estimate, 100 / mean, 1e-12);
}

TEST(Auc, EqualsScikitLearnWithTies) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  const std::vector<std::string> names = {"linear"};
  const PaperGates trained = train_paper_gates(pool, data.x.view(), data.delta, names);
  const std::vector<int8_t> gate_labels = label_by_delta(data.delta).label;
  std::vector<float> gate_values = gate_scores(pool, trained.gates[0], data.x.view());
  EXPECT_NEAR(auc(gate_values, gate_labels), reference::kAuc, 1e-9);
  for (float& v : gate_values) v = std::round(4 * v);
  EXPECT_NEAR(auc(gate_values, gate_labels), reference::kAucTies, 1e-9);

  const std::vector<float> scores = {3, 2, 2, 1, 1, 1};
  std::vector<int8_t> labels = {1, 1, 0, 0, 1, 0};
  // Pairs won: 3 beats 2, 1, 1 (3); 2 ties 2, beats 1, 1 (2.5); 1 loses to 2, ties 1, 1 (1): 6.5
  // / 9.
  EXPECT_NEAR(auc(scores, labels), 6.5 / 9, 1e-12);
  labels.assign(6, 1);
  EXPECT_EQ(auc(scores, labels), 0.5);
  EXPECT_EQ(auc({}, {}), 0.5);
}

TEST(Auc, LeavesOutNaNAndUnlabelled) {
  const float nan = std::nanf("");
  const std::vector<float> scores = {2, 1, nan, 9};
  const std::vector<int8_t> labels = {1, 0, 0, -1};
  EXPECT_EQ(auc(scores, labels), 1);
}

struct ScoredTokens {
  std::vector<float> scores;
  std::vector<int8_t> labels;
  std::vector<uint32_t> window;
};

ScoredTokens scored_tokens(size_t windows, size_t each) {
  ScoredTokens out;
  Random random(6, "auc");
  for (size_t w = 0; w < windows; ++w) {
    const double drift = random.normal();
    for (size_t i = 0; i < each; ++i) {
      const int8_t label = random.uniform() < 0.4;
      out.labels.push_back(label);
      out.scores.push_back(
          static_cast<float>(std::round(3 * (drift + 0.5 * label + random.normal()))));  // ties
      out.window.push_back(static_cast<uint32_t>(w));
    }
  }
  return out;
}

TEST(AucInterval, EqualsResamplingTokensOutright) {
  ThreadPool pool(2);
  const ScoredTokens t = scored_tokens(12, 40);
  const BootstrapDraws draws = draw_windows(12, 400, 11);
  const Interval found =
      auc_interval(pool, draws, t.scores, t.labels, t.window, {0.9, IntervalKind::kPercentile});
  EXPECT_NEAR(found.estimate, auc(t.scores, t.labels), 1e-12);
  std::vector<double> values;
  for (size_t r = 0; r < 400; ++r) {
    std::vector<float> scores;
    std::vector<int8_t> labels;
    for (size_t i = 0; i < t.scores.size(); ++i) {
      for (uint16_t k = 0; k < draws.counts(r, t.window[i]); ++k) {
        scores.push_back(t.scores[i]);
        labels.push_back(t.labels[i]);
      }
    }
    values.push_back(auc(scores, labels));
  }
  std::sort(values.begin(), values.end());
  const double low = 0.05 * 399;
  const size_t at = static_cast<size_t>(low);
  EXPECT_NEAR(found.lo, values[at] + (low - std::floor(low)) * (values[at + 1] - values[at]),
              1e-10);
}

TEST(AucInterval, ThreadsManyWindowsAndMissingClasses) {
  ThreadPool serial(1), parallel(3);
  const ScoredTokens t = scored_tokens(300, 10);  // joined into 256 blocks
  const BootstrapDraws draws = draw_windows(300, 1000, 12);
  const Interval one = auc_interval(serial, draws, t.scores, t.labels, t.window);
  const Interval three = auc_interval(parallel, draws, t.scores, t.labels, t.window);
  EXPECT_EQ(one.lo, three.lo);
  EXPECT_EQ(one.hi, three.hi);
  EXPECT_LT(one.lo, one.estimate);
  EXPECT_GT(one.hi, one.estimate);
  EXPECT_LT(one.p, 0.01);
  EXPECT_FALSE(one.too_few);
  const std::vector<int8_t> zeros(t.labels.size(), 0);
  const Interval none = auc_interval(serial, draws, t.scores, zeros, t.window);
  EXPECT_TRUE(none.too_few);
  EXPECT_EQ(none.estimate, 0.5);
  EXPECT_EQ(none.p, 1);
  EXPECT_THROW(auc_interval(serial, draw_windows(5, 10, 1), t.scores, t.labels, t.window), Error);
}

TEST(RankCorrelation, SharesRanksAmongEquals) {
  const std::vector<double> a = {1, 2, 2, 5, 3};
  EXPECT_NEAR(rank_correlation(a, std::vector<double>{3, 1, 4, 4, 5}), 5.75 / 9.5, 1e-12);
  EXPECT_NEAR(rank_correlation(a, std::vector<double>{-10, 0, 0, 9, 2}), 1, 1e-12);
  EXPECT_TRUE(std::isnan(rank_correlation(a, std::vector<double>(5, 7))));
}

TEST(Holm, StepsDown) {
  const std::vector<double> p = {0.01, 0.04, 0.03, 0.005};
  const std::vector<double> expected = {0.03, 0.06, 0.06, 0.02};
  const std::vector<double> found = holm(p);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-12);
  EXPECT_EQ(holm(std::vector<double>{0.9, 0.8})[0], 1);
  EXPECT_TRUE(holm({}).empty());
}

}  // namespace
}  // namespace halflin
