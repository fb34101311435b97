#include "halflin/mlp/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/mlp/surrogate.h"
#include "tests/mlp/reference_data.h"
#include "tests/mlp/reference_values.h"

namespace halflin {
namespace {

using reference::kFeatures;
using reference::kOutputs;
using reference::kRows;

const float kNaN = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();
const std::vector<std::string> kPaperNames = {"linear", "b1", "b3", "b6"};

TEST(Delta, StatisticsEqualNumpys) {
  const DeltaStats stats = delta_statistics(reference::make_data().delta);
  EXPECT_EQ(stats.count, kRows);
  EXPECT_NEAR(stats.median, reference::kDeltaMedian, 1e-12);
  EXPECT_NEAR(stats.mean, reference::kDeltaMean, 1e-12);
  EXPECT_NEAR(stats.sd, reference::kDeltaSd, 1e-12);
  EXPECT_NEAR(stats.pct_beneficial, reference::kDeltaPercentBeneficial, 1e-12);
}

TEST(Delta, LabelsAtTheMedianAndDropsNonFinite) {
  std::vector<float> delta = reference::make_data().delta;
  delta.push_back(kNaN);
  delta.push_back(kInf);
  delta.push_back(-kInf);
  const DeltaLabels labels = label_by_delta(delta);
  EXPECT_EQ(labels.reason, "");
  EXPECT_EQ(labels.stats.dropped, 3u);
  EXPECT_NEAR(labels.cut, reference::kDeltaMedian, 1e-12);
  size_t ones = 0;
  for (const int8_t l : labels.label) ones += l == 1;
  EXPECT_EQ(ones, kRows / 2);
  EXPECT_EQ(labels.label[kRows], -1);
  EXPECT_EQ(labels.label[kRows + 2], -1);
}

TEST(Delta, FewBeneficialTokensCutAtTheQuartile) {
  std::vector<float> delta = reference::make_data().delta;
  for (float& d : delta) d += 10;
  const DeltaLabels labels = label_by_delta(delta);
  EXPECT_NEAR(labels.cut, reference::kDeltaQuartile + 10, 1e-5);
  size_t ones = 0;
  for (const int8_t l : labels.label) ones += l == 1;
  EXPECT_EQ(ones, kRows / 4);
}

TEST(Delta, SaysWhyThereIsNoGate) {
  EXPECT_NE(label_by_delta(std::vector<float>(99, 1.0f)).reason, "");
  EXPECT_NE(label_by_delta(std::vector<float>(500, kNaN)).reason, "");
  EXPECT_EQ(label_by_delta(std::vector<float>(500, 0.0f)).reason, "every token falls in one class");
  EXPECT_EQ(delta_statistics({}).count, 0u);
  ThreadPool pool(1);
  const Matrix<float> x(500, 2);
  const PaperGates gates =
      train_paper_gates(pool, x.view(), std::vector<float>(500, 0.0f), kPaperNames);
  EXPECT_TRUE(gates.gates.empty());
  EXPECT_NE(gates.reason, "");
}

TEST(PaperGates, ScoresEqualScikitLearn) {
  ThreadPool pool(2);
  const reference::Data data = reference::make_data();
  const PaperGates out = train_paper_gates(pool, data.x.view(), data.delta, kPaperNames);
  ASSERT_EQ(out.gates.size(), 4u);
  const double* expected[] = {reference::kLinearGateScores, reference::kB1GateScores,
                              reference::kB3GateScores};
  for (size_t g = 0; g < 3; ++g) {
    const std::vector<float> scores = gate_scores(pool, out.gates[g], data.x.view());
    for (size_t t = 0; t < 8; ++t) {
      EXPECT_NEAR(static_cast<double>(scores[t]), expected[g][t], 3e-6) << kPaperNames[g];
    }
  }
  EXPECT_NEAR(out.accuracy[1], reference::kB1Accuracy, 1e-9);
  EXPECT_NEAR(out.accuracy[2], reference::kB3Accuracy, 1e-9);
  EXPECT_EQ(out.gates[0].params, kFeatures + 1);
  EXPECT_EQ(out.gates[1].params, kFeatures * 2 + 2 + 2 + 1);
  EXPECT_EQ(out.gates[2].params, kFeatures * 6 + 6 + 6 + 1);
  EXPECT_EQ(out.gates[3].params, kFeatures * 7 + 7 + 7 + 1);  // 12 components asked, 7 there
  EXPECT_EQ(out.gates[1].name, "b1");
  EXPECT_EQ(out.gates[1].threshold, 0);
}

TEST(PaperGates, MomentsGivenOrNotAreTheSame) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  Moments moments(kFeatures, 0);
  moments.add(pool, data.x.view(), {});
  const PaperGates own = train_paper_gates(pool, data.x.view(), data.delta, kPaperNames);
  const PaperGates given =
      train_paper_gates(pool, data.x.view(), data.delta, kPaperNames, &moments);
  for (size_t g = 0; g < 4; ++g) {
    EXPECT_EQ(own.gates[g].weight, given.gates[g].weight);
    EXPECT_EQ(own.gates[g].bias, given.gates[g].bias);
  }
  moments.n -= 1;
  EXPECT_THROW(train_paper_gates(pool, data.x.view(), data.delta, kPaperNames, &moments), Error);
}

TEST(PaperGates, RowsWithoutADeltaTakeNoPart) {
  ThreadPool pool(1);
  reference::Data data = reference::make_data();
  Matrix<float> x(kRows + 1, kFeatures);
  for (size_t t = 0; t < kRows; ++t) std::copy_n(data.x.row(t), kFeatures, x.row(t + 1));
  std::fill_n(x.row(0), kFeatures, 1e6f);
  std::vector<float> delta = data.delta;
  delta.insert(delta.begin(), kNaN);
  const PaperGates expected = train_paper_gates(pool, data.x.view(), data.delta, kPaperNames);
  const PaperGates found = train_paper_gates(pool, x.view(), delta, kPaperNames);
  for (size_t g = 0; g < 4; ++g) {
    for (size_t j = 0; j < kFeatures; ++j) {
      EXPECT_NEAR(found.gates[g].weight[j], expected.gates[g].weight[j], 1e-6f);
    }
  }
}

TEST(PaperGates, RefusesUnknownNames) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  for (const char* name : {"", "b", "b0", "b1x", "harm", "B1", "b-1"}) {
    const std::vector<std::string> names = {name};
    EXPECT_THROW(train_paper_gates(pool, data.x.view(), data.delta, names), Error) << name;
  }
}

TEST(HarmGate, EqualsScikitLearnsRidge) {
  ThreadPool pool(2);
  const reference::Data data = reference::make_data();
  Moments moments(kFeatures, kOutputs);
  moments.add(pool, data.x.view(), data.y.view());
  const Affine surrogate = ridge(pool, moments, 0.01);
  Matrix<float> g(kRows, kOutputs);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t j = 0; j < kOutputs; ++j) {
      double sum = static_cast<double>(surrogate.bias[j]);
      for (size_t i = 0; i < kFeatures; ++i) {
        sum += static_cast<double>(data.x(t, i)) * static_cast<double>(surrogate.weight(i, j));
      }
      g(t, j) = static_cast<float>(sum);
    }
  }
  const std::vector<double> energy = error_energy(pool, g.view(), data.y.view());
  const Gate gate = harm_gate(pool, data.x.view(), energy);
  EXPECT_EQ(gate.params, kFeatures + 1);
  const std::vector<float> scores = gate_scores(pool, gate, data.x.view());
  for (size_t t = 0; t < 8; ++t) {
    EXPECT_NEAR(static_cast<double>(scores[t]), reference::kHarmScores[t], 2e-4);
  }
  // From moments that exist already.
  const Gate cheap = harm_gate(pool, data.x.view(), energy, &moments);
  for (size_t j = 0; j < kFeatures; ++j) EXPECT_NEAR(cheap.weight[j], gate.weight[j], 1e-6f);
}

TEST(HarmGate, RanksTokensByTheirError) {
  ThreadPool pool(1);
  Random random(5, "harm");
  Matrix<float> x(2000, 3);
  std::vector<double> energy(2000);
  for (size_t t = 0; t < 2000; ++t) {
    for (size_t j = 0; j < 3; ++j) x(t, j) = static_cast<float>(random.normal());
    energy[t] = std::exp(2 * static_cast<double>(x(t, 1)));
  }
  const Gate gate = harm_gate(pool, x.view(), energy);
  EXPECT_NEAR(gate.weight[1], -2, 0.01);  // larger score, smaller error
  EXPECT_NEAR(gate.weight[0], 0, 0.01);
  EXPECT_NEAR(gate.bias, 0, 0.01);
}

TEST(HarmGate, ZeroAndBrokenEnergies) {
  const std::vector<double> energy = {0, 1, 4, 1e-30};
  const Matrix<float> log = log_error_energy(energy);
  EXPECT_NEAR(log(0, 0), std::log(1e-9), 1e-4);  // the median of the positive ones is 1
  EXPECT_EQ(log(3, 0), log(0, 0));
  EXPECT_EQ(log(1, 0), 0);
  EXPECT_TRUE(std::isfinite(log_error_energy(std::vector<double>(3, 0.0))(0, 0)));
  ThreadPool pool(1);
  const Matrix<float> x(3, 2);
  const std::vector<double> broken = {1, std::numeric_limits<double>::quiet_NaN(), 2};
  EXPECT_THROW(harm_gate(pool, x.view(), broken), Error);
  // Every energy zero: nothing to tell tokens apart by.
  const Gate gate = harm_gate(pool, x.view(), std::vector<double>(3, 0.0));
  EXPECT_EQ(gate.weight, std::vector<float>(2, 0.0f));
}

TEST(GateScore, GoesThroughTheHiddenLayer) {
  Gate gate{.name = "network", .weight = {2, -1}, .bias = -3};
  gate.hidden = {1, 0, 2, 0, -1, 1};  // [2, 3]
  gate.hidden_bias = {0.5f, -0.5f};
  EXPECT_EQ(gate.inputs(), 3u);
  EXPECT_EQ(gate_flops(gate), 16);
  const float x[3] = {1, 2, 0.25f};  // hidden: 2, -2.25
  const auto gelu = [](double z) { return 0.5 * z * (1 + std::erf(z / std::sqrt(2.0))); };
  EXPECT_NEAR(gate_score(gate, x), 2 * gelu(2) - gelu(-2.25) - 3, 1e-6);
  ThreadPool pool(2);
  const MatView<const float> rows(x, 1, 3);
  EXPECT_EQ(gate_scores(pool, gate, rows).front(), gate_score(gate, x));
  // Beside another gate, in one pass.
  Gate plain{.name = "plain", .weight = {1, -2, 0.1f}, .bias = 0.3f};
  const Gate* gates[] = {&plain, &gate, &plain};
  Matrix<float> scores(1, 3);
  score_rows(gates, rows, scores.view());
  EXPECT_EQ(scores(0, 0), gate_score(plain, x));
  EXPECT_EQ(scores(0, 1), gate_score(gate, x));
  EXPECT_EQ(scores(0, 2), gate_score(plain, x));
  gate.hidden_bias.clear();
  gate.hidden.clear();
  EXPECT_THROW(gate_scores(pool, gate, rows), Error);
}

TEST(Threshold, HitsTheRate) {
  Random random(8);
  std::vector<float> scores(1001);
  for (float& s : scores) s = static_cast<float>(random.normal());
  for (const double rate : {0.0, 0.001, 0.25, 0.5, 0.75, 0.999, 1.0}) {
    EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, rate)), rate, 0.5 / 1001 + 1e-12);
  }
  EXPECT_THROW(threshold_for_rate(scores, std::nan("")), Error);
}

TEST(Threshold, TiesGoToTheCloserSide) {
  const std::vector<float> scores = {3, 2, 2, 2, 2, 1, 1, 1, 1, 1};
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.2)), 0.1, 1e-12);
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.3)), 0.1, 1e-12);  // as near: lower
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.4)), 0.5, 1e-12);
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.5)), 0.5, 1e-12);
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.9)), 1.0, 1e-12);
  const std::vector<float> same(10, 7.0f);
  EXPECT_EQ(rate_above(same, threshold_for_rate(same, 0.5)), 0);
  EXPECT_EQ(rate_above(same, threshold_for_rate(same, 0.51)), 0);
  EXPECT_EQ(rate_above(same, threshold_for_rate(same, 0.9)), 1);
}

TEST(Threshold, NaNAndInfinityAndNeighbours) {
  const std::vector<float> scores = {kNaN, -kInf, 1, kInf};
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.25)), 0.25, 1e-12);
  EXPECT_NEAR(rate_above(scores, threshold_for_rate(scores, 0.5)), 0.5, 1e-12);
  const std::vector<float> close = {1.0f, std::nextafter(1.0f, 2.0f)};
  EXPECT_EQ(rate_above(close, threshold_for_rate(close, 0.5)), 0.5);
  EXPECT_EQ(threshold_for_rate({}, 0.5), std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace halflin
