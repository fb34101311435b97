#include "halflin/mlp/pruning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"

namespace halflin {
namespace {

constexpr size_t kRows = 400, kNeurons = 60, kWidth = 5;

// Activations that depend on each other: 40 random ones and 20 mixtures of these.
Matrix<float> activations() {
  Random random(11, "neurons");
  Matrix<float> a(kRows, kNeurons);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t j = 0; j < 40; ++j) {
      a(t, j) = 0.3f * static_cast<float>(j % 7) + static_cast<float>(random.normal());
    }
    for (size_t j = 40; j < kNeurons; ++j) {
      a(t, j) = a(t, j - 40) - 0.5f * a(t, j - 20) + 0.2f * static_cast<float>(random.normal());
    }
  }
  return a;
}

Matrix<float> output_weights() {
  Random random(12, "down");
  Matrix<float> down(kNeurons, kWidth);
  for (float& v : down.span()) v = static_cast<float>(random.normal());
  return down;
}

struct Case {
  ThreadPool pool{2};
  Matrix<float> a = activations();
  Matrix<float> down = output_weights();
  std::vector<float> bias = {1, 2, 3, 4, 5};
  Moments moments{kNeurons, 0};

  Case() { moments.add(pool, a.view(), MatView<const float>(nullptr, kRows, 0)); }
  std::vector<PrunedMlp> prune(std::span<const double> shares, double lambda = 0) {
    return prune_neurons(pool, moments, lambda, down.view(), bias, shares);
  }
};

// The energy of what is missed when columns `kept` of `a`, times `weights`, stand
// for a x down; both centred.
double missed(const Case& c, std::span<const int32_t> kept, MatView<const float> weights) {
  double energy = 0;
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t k = 0; k < kWidth; ++k) {
      double r = 0;
      for (size_t j = 0; j < kNeurons; ++j) {
        r += (static_cast<double>(c.a(t, j)) - c.moments.mean_x[j]) *
             static_cast<double>(c.down(j, k));
      }
      for (size_t i = 0; i < kept.size(); ++i) {
        const auto j = static_cast<size_t>(kept[i]);
        r -= (static_cast<double>(c.a(t, j)) - c.moments.mean_x[j]) *
             static_cast<double>(weights(i, k));
      }
      energy += r * r;
    }
  }
  return energy;
}

TEST(Pruning, RefitsTheOutputsByLeastSquares) {
  Case c;
  const std::vector<double> shares = {0.5, 0.8};
  const std::vector<PrunedMlp> pruned = c.prune(shares);
  Matrix<float> f(kRows, kWidth);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t k = 0; k < kWidth; ++k) {
      double sum = c.bias[k];
      for (size_t j = 0; j < kNeurons; ++j) {
        sum += static_cast<double>(c.a(t, j)) * static_cast<double>(c.down(j, k));
      }
      f(t, k) = static_cast<float>(sum);
    }
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::vector<int32_t>& kept = pruned[i].kept;
    ASSERT_EQ(kept.size(), i == 0 ? 30u : 48u);
    EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
    Matrix<float> inputs(kRows, kept.size());
    for (size_t t = 0; t < kRows; ++t) {
      for (size_t k = 0; k < kept.size(); ++k) {
        inputs(t, k) = c.a(t, static_cast<size_t>(kept[k]));
      }
    }
    Moments moments(kept.size(), kWidth);
    moments.add(c.pool, inputs.view(), f.view());
    const Matrix<double> best = ridge_weights(c.pool, moments, 0);
    const std::vector<double> bias = ridge_bias(moments, best.view());
    for (size_t j = 0; j < kWidth; ++j) {
      for (size_t k = 0; k < kept.size(); ++k) {
        EXPECT_NEAR(pruned[i].down(k, j), best(k, j), 2e-4);
      }
      EXPECT_NEAR(pruned[i].bias[j], bias[j], 1e-3);
    }
  }
}

TEST(Pruning, SetsAreNestedAndKeepingAllChangesNothing) {
  Case c;
  const std::vector<PrunedMlp> pruned = c.prune(std::vector<double>{0.25, 1.0, 0.5});
  EXPECT_TRUE(std::includes(pruned[2].kept.begin(), pruned[2].kept.end(), pruned[0].kept.begin(),
                            pruned[0].kept.end()));
  ASSERT_EQ(pruned[1].kept.size(), kNeurons);
  EXPECT_TRUE(
      std::equal(c.down.span().begin(), c.down.span().end(), pruned[1].down.span().begin()));
  EXPECT_EQ(pruned[1].bias, c.bias);
}

TEST(Pruning, BeatsKeepingTheNeuronsOfLargestContribution) {
  Case c;
  const PrunedMlp pruned = std::move(c.prune(std::vector<double>{0.5}).front());
  std::vector<std::pair<double, int32_t>> order;
  for (size_t j = 0; j < kNeurons; ++j) {
    double norm = 0;
    for (const float w : c.down.view().row_span(j)) norm += static_cast<double>(w * w);
    order.emplace_back(-c.moments.xx(j, j) * norm, static_cast<int32_t>(j));
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> largest;
  Matrix<float> weights(30, kWidth);
  for (size_t k = 0; k < 30; ++k) {
    largest.push_back(order[k].second);
    std::copy_n(c.down.row(static_cast<size_t>(order[k].second)), kWidth, weights.row(k));
  }
  EXPECT_LT(missed(c, pruned.kept, pruned.down.view()), 0.5 * missed(c, largest, weights.view()));
}

TEST(Pruning, NeuronsThatNeverFireOrRepeatOthersLeaveFirst) {
  ThreadPool pool(1);
  Random random(5);
  Matrix<float> a(200, 20);
  for (size_t t = 0; t < 200; ++t) {
    for (size_t j = 0; j < 20; ++j) a(t, j) = static_cast<float>(random.normal());
    a(t, 3) = 0.25f;     // constant: a bias
    a(t, 19) = a(t, 7);  // a twin
  }
  Matrix<float> down(20, 2);
  for (float& v : down.span()) v = 1;
  Moments moments(20, 0);
  moments.add(pool, a.view(), MatView<const float>(nullptr, 200, 0));
  const PrunedMlp pruned =
      std::move(prune_neurons(pool, moments, 0, down.view(), {}, std::vector<double>{0.9}).front());
  ASSERT_EQ(pruned.kept.size(), 18u);
  EXPECT_FALSE(std::binary_search(pruned.kept.begin(), pruned.kept.end(), 3));
  EXPECT_NE(std::binary_search(pruned.kept.begin(), pruned.kept.end(), 7),
            std::binary_search(pruned.kept.begin(), pruned.kept.end(), 19));
  EXPECT_NEAR(pruned.bias[0], 0.25, 1e-3);
  for (size_t k = 0; k < 18; ++k) {
    const bool twin = pruned.kept[k] == 7 || pruned.kept[k] == 19;
    EXPECT_NEAR(pruned.down(k, 0), twin ? 2 : 1, 1e-3);
  }
}

TEST(Pruning, DoesNotDependOnThreads) {
  Case c;
  ThreadPool one(1);
  const std::vector<double> shares = {0.5};
  const PrunedMlp a = std::move(c.prune(shares, 0.01).front());
  const PrunedMlp b =
      std::move(prune_neurons(one, c.moments, 0.01, c.down.view(), c.bias, shares).front());
  EXPECT_EQ(a.kept, b.kept);
  EXPECT_TRUE(std::equal(a.down.span().begin(), a.down.span().end(), b.down.span().begin()));
}

TEST(Pruning, RefusesWhatDoesNotFit) {
  Case c;
  EXPECT_THROW(c.prune(std::vector<double>{0.0}), Error);
  EXPECT_THROW(c.prune(std::vector<double>{1.5}), Error);
  const Matrix<float> narrow(3, kWidth);
  EXPECT_THROW(prune_neurons(c.pool, c.moments, 0, narrow.view(), {}, std::vector<double>{0.5}),
               Error);
  EXPECT_THROW(
      prune_neurons(c.pool, Moments(kNeurons, 0), 0, c.down.view(), {}, std::vector<double>{0.5}),
      Error);
}

}  // namespace
}  // namespace halflin
