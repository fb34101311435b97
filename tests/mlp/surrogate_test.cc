#include "halflin/mlp/surrogate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "halflin/base/error.h"
#include "tests/mlp/reference_data.h"
#include "tests/mlp/reference_values.h"

namespace halflin {
namespace {

using reference::kFeatures;
using reference::kOutputs;
using reference::kRows;

Moments moments_of(ThreadPool& pool, const reference::Data& data, size_t begin, size_t count) {
  Moments moments(kFeatures, kOutputs);
  moments.add(pool, data.x.view().row_range(begin, count), data.y.view().row_range(begin, count));
  return moments;
}

// Relative to the size of what is compared: weights are stored in float32.
void expect_close(std::span<const float> found, const double* expected) {
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(found[i]), expected[i], 2e-7 * std::abs(expected[i]) + 1e-9)
        << i;
  }
}

TEST(Surrogate, EqualsNumpysSingularValueDecomposition) {
  ThreadPool pool(2);
  const reference::Data data = reference::make_data();
  const Moments fit = moments_of(pool, data, 0, kRows / 2);
  const Moments held_out = moments_of(pool, data, kRows / 2, kRows / 2);
  const struct {
    double lambda;
    const double* weight;
    const double* bias;
    double r2, held_out_r2;
  } cases[] = {
      {0.01, reference::kRidgePaperWeight, reference::kRidgePaperBias, reference::kRidgePaperR2,
       reference::kRidgePaperHeldOutR2},
      {50.0, reference::kRidgeStrongWeight, reference::kRidgeStrongBias, reference::kRidgeStrongR2,
       reference::kRidgeStrongHeldOutR2},
      {0.0, reference::kRidgeNoneWeight, reference::kRidgeNoneBias, reference::kRidgeNoneR2,
       reference::kRidgeNoneHeldOutR2},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.lambda);
    const Affine affine = ridge(pool, fit, c.lambda);
    expect_close(affine.weight.span(), c.weight);
    expect_close(affine.bias, c.bias);
    EXPECT_NEAR(r2(pool, fit, affine), c.r2, 1e-8);  // weights are float32
    EXPECT_NEAR(r2(pool, held_out, affine), c.held_out_r2, 1e-7);
  }
}

TEST(Surrogate, LowRankEqualsTheAugmentedDecomposition) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  const Moments moments = moments_of(pool, data, 0, kRows);
  const LowRankAffine affine = low_rank(pool, moments, 5.0, 2);
  ASSERT_EQ(affine.down.cols(), 2u);
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t j = 0; j < kOutputs; ++j) {
      double product = 0;
      for (size_t k = 0; k < 2; ++k) {
        product += static_cast<double>(affine.down(i, k)) * static_cast<double>(affine.up(k, j));
      }
      EXPECT_NEAR(product, reference::kLowRankWeight[i * kOutputs + j], 1e-6);
    }
  }
  for (size_t j = 0; j < kOutputs; ++j) {
    EXPECT_NEAR(static_cast<double>(affine.bias[j]), reference::kLowRankBias[j], 1e-4);
  }
}

TEST(Surrogate, RanksFromMeanToFull) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  const Moments moments = moments_of(pool, data, 0, kRows);
  const LowRankAffine mean = low_rank(pool, moments, 0.01, 0);
  EXPECT_NEAR(static_cast<double>(mean.bias[0]), moments.mean_y[0], 1e-5);
  EXPECT_NEAR(r2(pool, moments, mean), 0, 1e-9);
  double before = 0;
  for (const size_t rank : {1u, 2u, 3u, 99u}) {
    const double now = r2(pool, moments, low_rank(pool, moments, 0.01, rank));
    EXPECT_GE(now, before - 1e-9);
    before = now;
  }
  EXPECT_NEAR(before, r2(pool, moments, ridge(pool, moments, 0.01)), 1e-8);
}

TEST(Surrogate, R2AgreesWithRowByRowErrors) {
  ThreadPool pool(2);
  const reference::Data data = reference::make_data();
  const Moments moments = moments_of(pool, data, 0, kRows);
  const Affine affine = ridge(pool, moments, 3.0);
  Matrix<float> g(kRows, kOutputs);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t j = 0; j < kOutputs; ++j) {
      double sum = static_cast<double>(affine.bias[j]);
      for (size_t i = 0; i < kFeatures; ++i) {
        sum += static_cast<double>(data.x(t, i)) * static_cast<double>(affine.weight(i, j));
      }
      g(t, j) = static_cast<float>(sum);
    }
  }
  const std::vector<double> energy = error_energy(pool, g.view(), data.y.view());
  const double sse = std::accumulate(energy.begin(), energy.end(), 0.0);
  const double sst = std::accumulate(moments.yy.begin(), moments.yy.end(), 0.0);
  EXPECT_NEAR(r2(pool, moments, affine), 1 - sse / sst, 1e-6);
}

TEST(Surrogate, ConstantOutputs) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  Matrix<float> y(kRows, 1);
  for (float& v : y.span()) v = 3;
  Moments moments(kFeatures, 1);
  moments.add(pool, data.x.view(), y.view());
  Affine affine = ridge(pool, moments, 0.01);
  EXPECT_EQ(r2(pool, moments, affine), 1);
  affine.bias[0] = 4;
  EXPECT_EQ(r2(pool, moments, affine), 0);
}

TEST(TrimMask, DropsTheLargestAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> energy = {1, 9, nan, 3, 9, 2, 0, 0, 0, 0};
  EXPECT_EQ(trim_mask(energy, 0.1), (std::vector<uint8_t>{1, 1, 0, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(trim_mask(energy, 0.2), (std::vector<uint8_t>{1, 1, 0, 1, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(trim_mask(energy, 0.0), std::vector<uint8_t>(10, 1));
  EXPECT_THROW(trim_mask(energy, 1.0), Error);
}

}  // namespace
}  // namespace halflin
