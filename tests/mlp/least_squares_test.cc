#include "halflin/mlp/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "tests/mlp/reference_data.h"
#include "tests/mlp/reference_values.h"

namespace halflin {
namespace {

using reference::make_data;

Matrix<float> random_matrix(size_t rows, size_t cols, uint64_t seed, double mean = 0) {
  Matrix<float> out(rows, cols);
  Random random(seed);
  for (float& v : out.span()) v = static_cast<float>(mean + random.normal());
  return out;
}

TEST(Moments, EqualTwoPassSumsHoweverRowsArrive) {
  ThreadPool pool(2);
  const Matrix<float> x = random_matrix(1300, 5, 1, 1000.0);  // a mean of 1000 sd
  const Matrix<float> y = random_matrix(1300, 2, 2, -50.0);
  Moments moments(5, 2);
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 1}, {1, 1200}, {1201, 99}}) {
    moments.add(pool, x.view().row_range(begin, count), y.view().row_range(begin, count));
  }
  ASSERT_EQ(moments.n, 1300u);
  std::vector<double> mx(5, 0.0), my(2, 0.0);
  for (size_t t = 0; t < 1300; ++t) {
    for (size_t j = 0; j < 5; ++j) mx[j] += static_cast<double>(x(t, j)) / 1300;
    for (size_t j = 0; j < 2; ++j) my[j] += static_cast<double>(y(t, j)) / 1300;
  }
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(moments.mean_x[i], mx[i], 1e-9);
    for (size_t j = 0; j < 5; ++j) {
      double xx = 0;
      for (size_t t = 0; t < 1300; ++t) {
        xx += (static_cast<double>(x(t, i)) - mx[i]) * (static_cast<double>(x(t, j)) - mx[j]);
      }
      EXPECT_NEAR(moments.xx(i, j), xx, 1e-8);
    }
    for (size_t j = 0; j < 2; ++j) {
      double xy = 0, yy = 0;
      for (size_t t = 0; t < 1300; ++t) {
        const double v = static_cast<double>(y(t, j)) - my[j];
        xy += (static_cast<double>(x(t, i)) - mx[i]) * v;
        yy += v * v;
      }
      EXPECT_NEAR(moments.xy(i, j), xy, 1e-8);
      EXPECT_NEAR(moments.yy[j], yy, 1e-8);
    }
  }
}

TEST(Moments, DoNotDependOnThreads) {
  const Matrix<float> x = random_matrix(1100, 200, 3);  // several panels, several blocks
  const Matrix<float> y = random_matrix(1100, 130, 4);
  Moments one(200, 130), three(200, 130);
  ThreadPool serial(1), parallel(3);
  one.add(serial, x.view(), y.view());
  three.add(parallel, x.view(), y.view());
  for (size_t i = 0; i < one.xx.size(); ++i) ASSERT_EQ(one.xx.data()[i], three.xx.data()[i]);
  for (size_t i = 0; i < one.xy.size(); ++i) ASSERT_EQ(one.xy.data()[i], three.xy.data()[i]);
  EXPECT_EQ(one.yy, three.yy);
  for (size_t i = 0; i < 200; ++i) {
    for (size_t j = 0; j < i; ++j) ASSERT_EQ(one.xx(i, j), one.xx(j, i));
  }
}

TEST(Moments, KeepLeavesRowsOutEvenNaN) {
  ThreadPool pool(1);
  Matrix<float> x = random_matrix(6, 2, 5);
  const Matrix<float> y = random_matrix(6, 1, 6);
  x(0, 1) = std::numeric_limits<float>::quiet_NaN();
  const std::vector<uint8_t> keep = {0, 1, 1, 1, 1, 1};
  Moments kept(2, 1), rest(2, 1);
  kept.add(pool, x.view(), y.view(), keep);
  rest.add(pool, x.view().row_range(1, 5), y.view().row_range(1, 5));
  EXPECT_EQ(kept.n, 5u);
  EXPECT_EQ(kept.mean_x, rest.mean_x);
  EXPECT_EQ(kept.xx(0, 1), rest.xx(0, 1));
  EXPECT_THROW(kept.add(pool, x.view(), y.view(), std::span(keep).first(3)), Error);
  EXPECT_THROW(kept.add(pool, x.view(), x.view()), Error);
}

TEST(Moments, NewTargetsForTheSameRows) {
  ThreadPool pool(2);
  const Matrix<float> x = random_matrix(1200, 9, 7, 4.0);
  const Matrix<float> y = random_matrix(1200, 2, 8);
  Moments full(9, 2), inputs(9, 0);
  full.add(pool, x.view(), y.view());
  inputs.add(pool, x.view(), {});
  const Moments retargeted = with_targets(pool, inputs, x.view(), y.view());
  for (size_t i = 0; i < full.xy.size(); ++i) {
    EXPECT_NEAR(retargeted.xy.data()[i], full.xy.data()[i], 1e-9);
  }
  EXPECT_NEAR(retargeted.yy[1], full.yy[1], 1e-9);
  EXPECT_NEAR(retargeted.mean_y[0], full.mean_y[0], 1e-12);
  EXPECT_THROW(with_targets(pool, inputs, x.view().row_range(0, 3), y.view().row_range(0, 3)),
               Error);
}

TEST(Ridge, RecoversAnExactAffineMap) {
  ThreadPool pool(1);
  const Matrix<float> x = random_matrix(50, 3, 9, 2.0);
  Matrix<float> y(50, 1);
  for (size_t t = 0; t < 50; ++t) y(t, 0) = 2 * x(t, 0) - 3 * x(t, 1) + 0.5f * x(t, 2) + 7;
  Moments moments(3, 1);
  moments.add(pool, x.view(), y.view());
  const Matrix<double> weight = ridge_weights(pool, moments, 0);
  const std::vector<double> bias = ridge_bias(moments, weight.view());
  EXPECT_NEAR(weight(0, 0), 2, 1e-6);
  EXPECT_NEAR(weight(1, 0), -3, 1e-6);
  EXPECT_NEAR(bias[0], 7, 1e-6);
  EXPECT_NEAR(residual_energy(pool, moments, weight.view(), bias)[0], 0, 1e-9);
}

TEST(Ridge, OneFeatureInClosedForm) {
  ThreadPool pool(1);
  Matrix<float> x(4, 1), y(4, 1);
  for (size_t t = 0; t < 4; ++t) {
    x(t, 0) = static_cast<float>(t);
    y(t, 0) = static_cast<float>(10 * t);
  }
  Moments moments(1, 1);
  moments.add(pool, x.view(), y.view());
  // xx = 5, xy = 50: 50 / (5 + 5).
  EXPECT_DOUBLE_EQ(ridge_weights(pool, moments, 5)(0, 0), 5);
}

TEST(Ridge, FewerRowsThanFeaturesGivesTheMinimumNormSolution) {
  ThreadPool pool(2);
  const Matrix<float> x = random_matrix(6, 10, 10);
  const Matrix<float> y = random_matrix(6, 2, 11);
  Moments moments(10, 2);
  moments.add(pool, x.view(), y.view());
  const Matrix<double> weight = ridge_weights(pool, moments, 0);
  const std::vector<double> bias = ridge_bias(moments, weight.view());
  for (const double e : residual_energy(pool, moments, weight.view(), bias)) EXPECT_LT(e, 1e-9);
  // Minimum norm: no part of the weights lies outside the span of the centred rows, so a tiny
  // penalty changes next to nothing.
  const Matrix<double> penalised = ridge_weights(pool, moments, 1e-7);
  for (size_t i = 0; i < weight.size(); ++i) {
    EXPECT_NEAR(weight.data()[i], penalised.data()[i], 1e-5);
  }
}

TEST(Ridge, RefusesNaNAndNoRows) {
  ThreadPool pool(1);
  Matrix<float> x = random_matrix(8, 3, 12);
  const Matrix<float> y = random_matrix(8, 1, 13);
  EXPECT_THROW(ridge_weights(pool, Moments(3, 1), 1), Error);
  x(4, 2) = std::numeric_limits<float>::quiet_NaN();
  Moments moments(3, 1);
  moments.add(pool, x.view(), y.view());
  try {
    ridge_weights(pool, moments, 1);
    FAIL() << "NaN went unnoticed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("feature 2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(factor_spd(moments.xx.view(), -1), Error);
}

TEST(Solve, ManyColumnsDoNotDependOnThreads) {
  const Matrix<float> x = random_matrix(400, 60, 14);
  const Matrix<float> y = random_matrix(400, 150, 15);
  ThreadPool serial(1), parallel(3);
  Moments moments(60, 150);
  moments.add(serial, x.view(), y.view());
  const Matrix<double> one = ridge_weights(serial, moments, 0.1);
  const Matrix<double> three = ridge_weights(parallel, moments, 0.1);
  for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one.data()[i], three.data()[i]);
  for (size_t i = 0; i < 60; ++i) {  // (xx + lambda I) W = xy
    double product = 0.1 * one(i, 149);
    for (size_t k = 0; k < 60; ++k) product += moments.xx(i, k) * one(k, 149);
    EXPECT_NEAR(product, moments.xy(i, 149), 1e-9);
  }
}

TEST(Eigen, PairsOfAKnownMatrix) {
  Matrix<double> a(2, 2);
  a(0, 0) = a(1, 1) = 2;
  a(0, 1) = a(1, 0) = 1;
  const Eigenpairs top = top_eigenpairs(a.view(), 5);
  ASSERT_EQ(top.values.size(), 2u);
  EXPECT_NEAR(top.values[0], 3, 1e-12);
  EXPECT_NEAR(top.values[1], 1, 1e-12);
  EXPECT_NEAR(std::abs(top.vectors(0, 0)), std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(top.vectors(0, 0), top.vectors(1, 0), 1e-12);
}

TEST(Standardize, PopulationScaleAndConstantFeatures) {
  ThreadPool pool(1);
  Matrix<float> x(3, 3);
  for (size_t t = 0; t < 3; ++t) {
    x(t, 0) = static_cast<float>(t);
    x(t, 1) = 0.1f;  // constant, and not exact in binary
    x(t, 2) = -2 * static_cast<float>(t);
  }
  Moments moments(3, 0);
  moments.add(pool, x.view(), {});
  const Standardized standard = standardize(moments);
  EXPECT_NEAR(standard.scale[0], std::sqrt(2.0 / 3), 1e-12);
  EXPECT_EQ(standard.scale[1], 1);
  EXPECT_NEAR(standard.gram(0, 0), 3, 1e-12);
  EXPECT_NEAR(standard.gram(0, 2), -3, 1e-12);
  EXPECT_EQ(standard.gram(1, 1), 0);
}

}  // namespace
}  // namespace halflin
