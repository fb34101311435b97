// Central differences in float64 of reference forward passes, to hold float32 gradients against.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/random.h"

namespace halflin {

inline Matrix<float> random_matrix(Random& random, size_t rows, size_t cols, double scale = 1.0,
                                   double shift = 0.0) {
  Matrix<float> m(rows, cols);
  for (float& v : m.span()) v = static_cast<float>(shift + scale * random.normal());
  return m;
}

inline std::vector<double> to_double(const Matrix<float>& m) {
  return std::vector<double>(m.span().begin(), m.span().end());
}

// `f` is a scalar function of the values; compares its derivatives at `x` with `gradient`, at up to
// `most` entries spread evenly. Differences cost h^2 f''' / 6 + 1e-16 f / h, about 1e-9 at h = 1e-4
// and values near 1; float32 gradients are good to about 1e-6 of the terms they add up, so that
// `tolerance` is a share of the largest derivative.
inline void expect_derivatives(const std::function<double(const std::vector<double>&)>& f,
                               std::vector<double> x, std::span<const float> gradient,
                               size_t most = 400, double tolerance = 2e-5, double h = 1e-4) {
  ASSERT_EQ(x.size(), gradient.size());
  double largest = 1e-6;
  for (const float v : gradient) largest = std::max<double>(largest, std::abs(v));
  const size_t step = std::max<size_t>(x.size() / most, 1);
  for (size_t i = 0; i < x.size(); i += step) {
    const double at = x[i];
    x[i] = at + h;
    const double above = f(x);
    x[i] = at - h;
    const double below = f(x);
    x[i] = at;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * h), tolerance * largest) << "entry " << i;
  }
}

}  // namespace halflin
