#include "halflin/ops/dots.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace halflin {
namespace {

// The order of additions that dots.h promises.
double expected(const float* x, const float* weight, size_t d) {
  double sum[16] = {};
  for (size_t j = 0; j < d; ++j) {
    sum[j % 16] += static_cast<double>(x[j]) * static_cast<double>(weight[j]);
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) sum[k] += sum[k + half];
  }
  return sum[0];
}

TEST(Dots, HaveTheSameBitsForAnyNumberOfRowsAndWeights) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const size_t d : {1, 15, 16, 33, 192}) {
    Matrix<float> x(9, d), weights(3, d);
    OperandBuffer rounded(Precision::kBF16, 9, d);
    for (float& v : x.span()) v = normal(random);
    for (float& v : weights.span()) v = normal(random);
    const MutableOperand bf16_x = rounded.view(9, d);
    convert(x.view(), bf16_x);
    Matrix<float> widened(9, d);
    for (size_t t = 0; t < 9; ++t) {
      for (size_t j = 0; j < d; ++j) {
        widened(t, j) = bf16_x.is_bf16 ? to_float(bf16_x.bf16_row(t)[j]) : x(t, j);
      }
    }
    const std::vector<const float*> all = {weights.row(0), weights.row(1), weights.row(2)};
    for (size_t rows = 1; rows <= 9; ++rows) {
      Matrix<double> out(rows, 3), of_bf16(rows, 3);
      dots(x.view().row_range(0, rows), all, out.view());
      dots(bf16_x.row_range(0, rows), all, of_bf16.view());
      for (size_t t = 0; t < rows; ++t) {
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(out(t, i), expected(x.row(t), all[i], d)) << d;
          EXPECT_EQ(of_bf16(t, i), expected(widened.row(t), all[i], d)) << d;
        }
      }
    }
  }
}

}  // namespace
}  // namespace halflin
