#include "halflin/mlp/logistic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "tests/mlp/reference_data.h"
#include "tests/mlp/reference_values.h"

namespace halflin {
namespace {

struct Problem {
  Matrix<float> x;
  std::vector<int8_t> label;
  Standardized standard;
};

// Strongly correlated features of very different scales, as activations are.
Problem make_problem(size_t rows, size_t d, double signal) {
  ThreadPool pool(2);
  Problem out;
  out.x = Matrix<float>(rows, d);
  out.label.resize(rows);
  Random random(17, "logistic");
  for (size_t t = 0; t < rows; ++t) {
    const double common = random.normal();
    double score = 0;
    for (size_t j = 0; j < d; ++j) {
      const double v = 3 * common + random.normal() * (j % 3 == 0 ? 0.01 : 1.0);
      out.x(t, j) = static_cast<float>(v * std::pow(10.0, static_cast<double>(j % 4) - 2) + 1);
      score += j % 2 == 0 ? v - 3 * common : 0;
    }
    out.label[t] = signal * score + random.normal() > 0.3 ? 1 : 0;
  }
  Moments moments(d, 0);
  moments.add(pool, out.x.view(), {});
  out.standard = standardize(moments);
  return out;
}

// The gradient of the objective at the solution, computed afresh.
double gradient_norm(const Problem& p, const Logistic& fit, double c) {
  std::vector<double> gradient(fit.weight);
  double at_intercept = 0;
  for (size_t t = 0; t < p.x.rows(); ++t) {
    double score = fit.intercept;
    std::vector<double> z(p.x.cols());
    for (size_t j = 0; j < z.size(); ++j) {
      z[j] = (static_cast<double>(p.x(t, j)) - p.standard.mean[j]) / p.standard.scale[j];
      score += z[j] * fit.weight[j];
    }
    const double r = c * (1 / (1 + std::exp(-score)) - p.label[t]);
    for (size_t j = 0; j < z.size(); ++j) gradient[j] += r * z[j];
    at_intercept += r;
  }
  double sum = at_intercept * at_intercept;
  for (const double g : gradient) sum += g * g;
  return std::sqrt(sum);
}

TEST(Logistic, EqualsScikitLearn) {
  ThreadPool pool(1);
  const reference::Data data = reference::make_data();
  Moments moments(reference::kFeatures, 0);
  moments.add(pool, data.x.view(), {});
  std::vector<int8_t> label(reference::kRows);
  for (size_t t = 0; t < label.size(); ++t) {
    label[t] = static_cast<double>(data.delta[t]) <= reference::kDeltaMedian;
  }
  const Logistic fit = fit_logistic(pool, data.x.view(), label, standardize(moments));
  EXPECT_TRUE(fit.converged);
  for (size_t j = 0; j < reference::kFeatures; ++j) {
    EXPECT_NEAR(fit.weight[j], reference::kLogisticWeight[j], 1e-8) << j;
  }
  EXPECT_NEAR(fit.intercept, reference::kLogisticIntercept, 1e-8);
}

TEST(Logistic, ReachesTheMinimumOfHardProblemsInFewPasses) {
  ThreadPool pool(2);
  // Weak labels (a real gate's), strong ones, and separable ones that only the penalty holds.
  for (const double signal : {0.1, 3.0, 1e6}) {
    for (const double c : {1.0, 100.0}) {
      SCOPED_TRACE(testing::Message() << "signal " << signal << ", C " << c);
      const Problem p = make_problem(3000, 20, signal);
      const Logistic fit = fit_logistic(pool, p.x.view(), p.label, p.standard, c);
      EXPECT_TRUE(fit.converged);
      EXPECT_LT(gradient_norm(p, fit, c), 1e-5);
      EXPECT_LT(fit.passes, 150);
    }
  }
}

TEST(Logistic, DoesNotDependOnThreads) {
  ThreadPool serial(1), parallel(3);
  const Problem p = make_problem(2000, 13, 0.5);
  const Logistic one = fit_logistic(serial, p.x.view(), p.label, p.standard);
  const Logistic three = fit_logistic(parallel, p.x.view(), p.label, p.standard);
  EXPECT_EQ(one.weight, three.weight);
  EXPECT_EQ(one.intercept, three.intercept);
}

TEST(Logistic, LeavesRowsOut) {
  ThreadPool pool(1);
  Problem p = make_problem(400, 4, 0.5);
  Moments rest(4, 0);
  rest.add(pool, p.x.view().row_range(7, 393), {});
  const Standardized standard = standardize(rest);
  const Logistic without =
      fit_logistic(pool, p.x.view().row_range(7, 393), std::span(p.label).subspan(7), standard);
  for (size_t t = 0; t < 7; ++t) {
    p.label[t] = -1;
    p.x(t, 0) = std::numeric_limits<float>::quiet_NaN();
  }
  const Logistic with = fit_logistic(pool, p.x.view(), p.label, standard);
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(with.weight[j], without.weight[j], 1e-9);
}

TEST(Logistic, PlainFeaturesNeedNotBeCentred) {
  ThreadPool pool(1);
  const Problem p = make_problem(500, 4, 0.5);
  Matrix<double> z(500, 4);
  for (size_t t = 0; t < 500; ++t) {
    for (size_t j = 0; j < 4; ++j) {
      z(t, j) = (static_cast<double>(p.x(t, j)) - p.standard.mean[j]) / p.standard.scale[j] + 2;
    }
  }
  const Logistic centred = fit_logistic(pool, p.x.view(), p.label, p.standard);
  const Logistic shifted = fit_logistic(pool, z.view(), p.label);
  double intercept = centred.intercept;
  for (size_t j = 0; j < 4; ++j) {
    EXPECT_NEAR(shifted.weight[j], centred.weight[j], 1e-7);
    intercept -= 2 * centred.weight[j];
  }
  EXPECT_NEAR(shifted.intercept, intercept, 1e-6);
}

TEST(Logistic, RefusesOneClassAndNaN) {
  ThreadPool pool(1);
  Problem p = make_problem(300, 3, 0.5);
  const std::vector<int8_t> ones(300, 1);
  EXPECT_THROW(fit_logistic(pool, p.x.view(), ones, p.standard), Error);
  EXPECT_THROW(fit_logistic(pool, p.x.view(), std::span(p.label).first(9), p.standard), Error);
  EXPECT_THROW(fit_logistic(pool, p.x.view(), p.label, p.standard, 0.0), Error);
  p.x(100, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(fit_logistic(pool, p.x.view(), p.label, p.standard), Error);
}

}  // namespace
}  // namespace halflin
