#include "halflin/mlp/folding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"

namespace halflin {
namespace {

constexpr size_t kWidth = 5;
constexpr size_t kNeurons = 16;
constexpr size_t kTokens = 700;
constexpr double kLambda = 1.0;

// f(x) = relu(x up) down + bias, with y = [f | neurons].
struct ToyMlp {
  Matrix<float> x{kTokens, kWidth};
  Matrix<float> y{kTokens, kWidth + kNeurons};
  Matrix<float> down{kNeurons, kWidth};
  std::vector<float> bias = std::vector<float>(kWidth);

  ToyMlp() {
    Random random(3, "toy mlp");
    Matrix<float> up(kWidth, kNeurons);
    for (float& v : x.span()) v = static_cast<float>(random.normal() + 0.5);
    for (float& v : up.span()) v = static_cast<float>(random.normal());
    for (float& v : down.span()) v = static_cast<float>(random.normal());
    for (float& v : bias) v = static_cast<float>(random.normal());
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t k = 0; k < kWidth; ++k) y(t, k) = bias[k];
      for (size_t j = 0; j < kNeurons; ++j) {
        float a = 0;
        for (size_t i = 0; i < kWidth; ++i) a += x(t, i) * up(i, j);
        // Neuron 3 is linear: nothing is lost by folding it.
        a = j == 3 ? a : std::max(a, 0.0f);
        y(t, kWidth + j) = a;
        for (size_t k = 0; k < kWidth; ++k) y(t, k) += a * down(j, k);
      }
    }
  }

  Moments moments(ThreadPool& pool) const {
    Moments out(kWidth, kWidth + kNeurons);
    out.add(pool, x.view(), y.view());
    return out;
  }

  double error(const FoldedMlp& folded) const {
    double sum = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t k = 0; k < kWidth; ++k) {
        double value = static_cast<double>(folded.folded.bias[k]);
        for (size_t i = 0; i < kWidth; ++i) {
          value += static_cast<double>(x(t, i)) * static_cast<double>(folded.folded.weight(i, k));
        }
        for (const int32_t j : folded.kept) {
          const auto n = static_cast<size_t>(j);
          value += static_cast<double>(y(t, kWidth + n)) * static_cast<double>(down(n, k));
        }
        const double d = value - static_cast<double>(y(t, k));
        sum += d * d;
      }
    }
    return sum;
  }
};

TEST(Folding, KeepingNoneIsTheLinearSurrogate) {
  ThreadPool pool(2);
  const ToyMlp mlp;
  const Moments moments = mlp.moments(pool);
  const NeuronFit fit = fit_neurons(pool, moments, kLambda, mlp.down.view(), kWidth);
  const FoldedMlp folded = fold_neurons(pool, fit, mlp.down.view(), mlp.bias, 0);
  EXPECT_TRUE(folded.kept.empty());

  Moments of_f(kWidth, kWidth);
  of_f.add(pool, mlp.x.view(), mlp.y.view().col_range(0, kWidth));
  const Affine surrogate = ridge(pool, of_f, kLambda);
  for (size_t i = 0; i < surrogate.weight.size(); ++i) {
    EXPECT_NEAR(folded.folded.weight.data()[i], surrogate.weight.data()[i], 1e-5f);
  }
  for (size_t k = 0; k < kWidth; ++k) {
    EXPECT_NEAR(folded.folded.bias[k], surrogate.bias[k], 1e-5f);
  }
}

TEST(Folding, KeepingAllIsTheMlp) {
  ThreadPool pool(1);
  const ToyMlp mlp;
  const NeuronFit fit = fit_neurons(pool, mlp.moments(pool), kLambda, mlp.down.view(), kWidth);
  const FoldedMlp folded = fold_neurons(pool, fit, mlp.down.view(), mlp.bias, 1);
  ASSERT_EQ(folded.kept.size(), kNeurons);
  for (size_t j = 0; j < kNeurons; ++j) EXPECT_EQ(folded.kept[j], static_cast<int32_t>(j));
  for (const float w : folded.folded.weight.span()) EXPECT_EQ(w, 0);
  EXPECT_EQ(folded.folded.bias, mlp.bias);
  EXPECT_LT(mlp.error(folded), 1e-6);
}

TEST(Folding, MoreNeuronsLessErrorAndTheLinearOneGoesFirst) {
  ThreadPool pool(1);
  const ToyMlp mlp;
  const NeuronFit fit = fit_neurons(pool, mlp.moments(pool), 1e-3, mlp.down.view(), kWidth);
  EXPECT_EQ(fit.ranking.back(), 3);
  EXPECT_LT(fit.energy[3], 1e-4);
  const double none = mlp.error(fold_neurons(pool, fit, mlp.down.view(), mlp.bias, 0));
  const double half = mlp.error(fold_neurons(pool, fit, mlp.down.view(), mlp.bias, 0.5));
  const double most = mlp.error(fold_neurons(pool, fit, mlp.down.view(), mlp.bias, 15.0 / 16));
  EXPECT_LT(half, 0.7 * none);
  EXPECT_LT(most, 1e-4 * none);
}

TEST(Folding, ClosedFormEnergyIsTheResidualEnergy) {
  ThreadPool pool(1);
  const ToyMlp mlp;
  const NeuronFit fit = fit_neurons(pool, mlp.moments(pool), 20.0, mlp.down.view(), kWidth);
  for (const size_t j : {0u, 7u, 15u}) {
    double energy = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      double r = static_cast<double>(mlp.y(t, kWidth + j)) - fit.bias[j];
      for (size_t i = 0; i < kWidth; ++i) r -= static_cast<double>(mlp.x(t, i)) * fit.weight(j, i);
      energy += r * r;
    }
    EXPECT_NEAR(fit.energy[j], energy, 1e-8 * energy);
  }
}

TEST(Folding, TiesKeepTheLowerIndexAndFractionsRound) {
  ThreadPool pool(1);
  ToyMlp mlp;
  for (size_t t = 0; t < kTokens; ++t) {  // all neurons equal
    for (size_t j = 0; j < kNeurons; ++j) mlp.y(t, kWidth + j) = mlp.x(t, 0) * mlp.x(t, 0);
  }
  for (float& w : mlp.down.span()) w = 1;
  const NeuronFit fit = fit_neurons(pool, mlp.moments(pool), kLambda, mlp.down.view(), kWidth);
  const FoldedMlp folded = fold_neurons(pool, fit, mlp.down.view(), {}, 0.2);  // 3.2 neurons
  EXPECT_EQ(folded.kept, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Folding, RefusesWrongShapes) {
  ThreadPool pool(1);
  const ToyMlp mlp;
  const Moments moments = mlp.moments(pool);
  EXPECT_THROW(fit_neurons(pool, moments, kLambda, mlp.down.view(), kWidth + 1), Error);
  const NeuronFit fit = fit_neurons(pool, moments, kLambda, mlp.down.view(), kWidth);
  EXPECT_THROW(fold_neurons(pool, fit, mlp.down.view(), mlp.bias, 1.5), Error);
  EXPECT_THROW(fold_neurons(pool, fit, mlp.down.view().row_range(0, 4), mlp.bias, 0.5), Error);
}

}  // namespace
}  // namespace halflin
