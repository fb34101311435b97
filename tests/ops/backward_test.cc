// Each op's backward against central differences of its formula in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "gradient_check.h"
#include "halflin/base/error.h"
#include "halflin/ops/activation.h"
#include "halflin/ops/attention.h"
#include "halflin/ops/dense.h"
#include "halflin/ops/embedding.h"
#include "halflin/ops/norm.h"
#include "halflin/ops/rope.h"

namespace halflin {
namespace {

double weighted_sum(const std::vector<double>& y, const Matrix<float>& weight) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(weight.data()[i]);
  return sum;
}

MutableOperand operand(Matrix<float>& m) {
  MutableOperand view;
  view.data = m.data();
  view.rows = m.rows();
  view.cols = m.cols();
  view.stride = m.cols();
  return view;
}

class Norms : public testing::TestWithParam<NormKind> {};

TEST_P(Norms, GradientsOfInputWeightAndBias) {
  ThreadPool pool(2);
  Random random(1);
  constexpr size_t kRows = 131, kCols = 37;  // two blocks of rows, no whole number of vectors
  const bool centre = GetParam() == NormKind::kLayerNorm;
  const Matrix<float> x = random_matrix(random, kRows, kCols, 1.3, 0.7);
  const Matrix<float> dy = random_matrix(random, kRows, kCols);
  const Matrix<float> weight = random_matrix(random, 1, kCols, 0.3, 1.0);
  const Matrix<float> bias = random_matrix(random, 1, kCols);
  Norm norm{GetParam(), 1e-2f, {weight.span().begin(), weight.span().end()}, {}};
  if (centre) norm.bias.assign(bias.span().begin(), bias.span().end());
  const auto forward = [&](const std::vector<double>& in, const std::vector<double>& w,
                           const std::vector<double>& b) {
    std::vector<double> y(in.size());
    for (size_t t = 0; t < kRows; ++t) {
      const double* row = in.data() + t * kCols;
      double mean = 0, variance = 0;
      for (size_t i = 0; i < kCols && centre; ++i) mean += row[i] / kCols;
      for (size_t i = 0; i < kCols; ++i) variance += (row[i] - mean) * (row[i] - mean) / kCols;
      for (size_t i = 0; i < kCols; ++i) {
        y[t * kCols + i] =
            (row[i] - mean) / std::sqrt(variance + double{1e-2f}) * w[i] + (centre ? b[i] : 0);
      }
    }
    return weighted_sum(y, dy);
  };
  Matrix<float> dx(kRows, kCols), dweight(1, kCols), dbias(1, kCols);
  normalize_backward(pool, norm, x.view(), dy.view(), dx.view(), dweight.span(),
                     centre ? dbias.span() : std::span<float>());
  const std::vector<double> dx_in = to_double(x), w_in = to_double(weight), b_in = to_double(bias);
  expect_derivatives([&](const auto& v) { return forward(v, w_in, b_in); }, dx_in, dx.span());
  expect_derivatives([&](const auto& v) { return forward(dx_in, v, b_in); }, w_in, dweight.span());
  if (centre) {
    expect_derivatives([&](const auto& v) { return forward(dx_in, w_in, v); }, b_in, dbias.span());
  }
  // What is there already is added to.
  Matrix<float> twice(kRows, kCols);
  std::copy(dx.span().begin(), dx.span().end(), twice.data());
  normalize_backward(pool, norm, x.view(), dy.view(), twice.view(), {}, {});
  for (size_t i = 0; i < dx.size(); ++i) {
    EXPECT_NEAR(twice.data()[i], 2 * dx.data()[i], 1e-5 * (1 + std::abs(dx.data()[i])));
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Norms, testing::Values(NormKind::kLayerNorm, NormKind::kRmsNorm));

double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::kGeluErf:
      return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return x * 0.5 *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kNone:
      break;
  }
  return x;
}

class Activations : public testing::TestWithParam<Activation> {};

TEST_P(Activations, ValuesAndGradients) {
  ThreadPool pool(2);
  Random random(2);
  const Matrix<float> x = random_matrix(random, 41, 45, 3.0);
  const Matrix<float> up = random_matrix(random, 41, 45);
  const Matrix<float> dy = random_matrix(random, 41, 45);
  for (const bool gated : {false, true}) {
    const auto forward = [&](const std::vector<double>& in, const std::vector<double>& factor) {
      std::vector<double> y(in.size());
      for (size_t i = 0; i < y.size(); ++i) {
        y[i] = activation(GetParam(), in[i]) * (gated ? factor[i] : 1.0);
      }
      return y;
    };
    const std::vector<double> x64 = to_double(x), up64 = to_double(up);
    Matrix<float> y(41, 45), dx(41, 45), dup(41, 45);
    if (gated) {
      activate_gated(pool, GetParam(), x.view(), up.view(), operand(y));
      activate_gated_backward(pool, GetParam(), x.view(), up.view(), dy.view(), dx.view(),
                              dup.view());
      expect_derivatives([&](const auto& v) { return weighted_sum(forward(x64, v), dy); }, up64,
                         dup.span());
    } else {
      activate(pool, GetParam(), x.view(), operand(y));
      activate_backward(pool, GetParam(), x.view(), dy.view(), dx.view());
    }
    const std::vector<double> want = forward(x64, up64);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(y.data()[i], want[i], 3e-6);
    expect_derivatives([&](const auto& v) { return weighted_sum(forward(v, up64), dy); }, x64,
                       dx.span());
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Activations,
                         testing::Values(Activation::kGeluErf, Activation::kGeluTanh,
                                         Activation::kSilu, Activation::kRelu, Activation::kNone));

TEST(Activations, ExtremesStayFinite) {
  ThreadPool pool(1);
  Matrix<float> x(1, 6), dy(1, 6), y(1, 6), dx(1, 6);
  const float values[] = {-1e30f, -200.f, -88.5f, 88.5f, 200.f, 1e6f};
  std::copy_n(values, 6, x.data());
  std::fill_n(dy.data(), 6, 1.f);
  for (const Activation kind : {Activation::kGeluErf, Activation::kSilu, Activation::kRelu}) {
    activate(pool, kind, x.view(), operand(y));
    activate_backward(pool, kind, x.view(), dy.view(), dx.view());
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(y.data()[i], std::max(values[i], 0.f), 1e-5f * std::abs(values[i]));
      EXPECT_NEAR(dx.data()[i], values[i] > 0 ? 1.f : 0.f, 1e-5f);
    }
  }
}

TEST(Rope, BackwardIsTheTranspose) {
  Rope rope;
  rope.dims = 6;
  rope.frequencies = {1.f, 0.3f, 0.05f};
  rope.scale = 1.2f;
  const RopeTable table = make_rope_table(rope, 9);
  Random random(3);
  Matrix<float> x = random_matrix(random, 9, 16);
  Matrix<float> dy = random_matrix(random, 9, 16);
  const Matrix<float> weight = [&] {
    Matrix<float> copy(9, 16);
    std::copy(dy.span().begin(), dy.span().end(), copy.data());
    return copy;
  }();
  const std::vector<double> before = to_double(x);
  const std::vector<size_t> positions = {0, 1, 2, 3, 4, 0, 1, 7, 8};
  rotate(table, x.view(), 2, 8, positions.data());
  const double forward = weighted_sum(to_double(x), weight);
  rotate_back(table, dy.view(), 2, 8, positions.data());
  EXPECT_NEAR(weighted_sum(before, dy), forward, 1e-5);  // <A x, w> = <x, A^T w>
}

struct AttentionCase {
  AttentionShape shape;
  std::vector<size_t> offsets;
};

std::vector<double> attend64(const AttentionCase& c, const std::vector<double>& qkv) {
  const AttentionShape& s = c.shape;
  const size_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  std::vector<double> out(c.offsets.back() * s.heads * s.head_dim);
  for (size_t q = 0; q + 1 < c.offsets.size(); ++q) {
    for (size_t h = 0; h < s.heads; ++h) {
      const size_t kv = h / (s.heads / s.kv_heads);
      for (size_t t = c.offsets[q]; t < c.offsets[q + 1]; ++t) {
        const double* query = &qkv[t * width + h * s.head_dim];
        const size_t begin =
            s.window == 0 || t + 1 < c.offsets[q] + s.window ? c.offsets[q] : t + 1 - s.window;
        std::vector<double> p;
        double sum = 0;
        for (size_t j = begin; j <= t; ++j) {
          const double* key = &qkv[j * width + (s.heads + kv) * s.head_dim];
          double dot = 0;
          for (size_t i = 0; i < s.head_dim; ++i) dot += query[i] * key[i];
          p.push_back(std::exp(static_cast<double>(s.scale) * dot));
          sum += p.back();
        }
        for (size_t j = begin; j <= t; ++j) {
          const double* value = &qkv[j * width + (s.heads + s.kv_heads + kv) * s.head_dim];
          for (size_t i = 0; i < s.head_dim; ++i) {
            out[(t * s.heads + h) * s.head_dim + i] += p[j - begin] / sum * value[i];
          }
        }
      }
    }
  }
  return out;
}

TEST(Attention, GradientsOfQueriesKeysAndValues) {
  const std::vector<AttentionCase> cases = {
      {{4, 2, 5, 0.4f, 0}, {0, 1, 3, 14}},  // grouped heads, packed sequences
      {{2, 2, 8, 0.35f, 0}, {0, 101}},      // several blocks of query rows
      {{3, 1, 7, 0.3f, 6}, {0, 53, 60}},    // a sliding window
      {{2, 1, 33, 0.2f, 40}, {0, 120}},     // a window longer than a block
  };
  Random random(4);
  for (const AttentionCase& c : cases) {
    const AttentionShape& s = c.shape;
    const size_t rows = c.offsets.back();
    const Matrix<float> qkv = random_matrix(random, rows, (s.heads + 2 * s.kv_heads) * s.head_dim);
    const Matrix<float> dout = random_matrix(random, rows, s.heads * s.head_dim);
    std::vector<Matrix<float>> found;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      AttentionGradientScratch scratch;
      Matrix<float> dqkv(rows, qkv.cols());
      std::fill_n(dqkv.data(), dqkv.size(), NAN);  // to be overwritten
      attend_backward(pool, s, qkv.view(), c.offsets, dout.view(), scratch, dqkv.view());
      found.push_back(std::move(dqkv));
    }
    EXPECT_EQ(0, std::memcmp(found[0].data(), found[1].data(), found[0].size() * sizeof(float)));
    expect_derivatives([&](const auto& v) { return weighted_sum(attend64(c, v), dout); },
                       to_double(qkv), found[0].span(), 200);
  }
}

// Products of sizes around the tiles' edges, against float64 sums.
TEST(Dense, ForwardAndGradients) {
  ThreadPool pool(2);
  Random random(5);
  struct Sizes {
    size_t rows, in, out;
  };
  for (const auto& [rows, in, out] : {Sizes{1, 7, 5}, Sizes{37, 64, 33}, Sizes{530, 70, 401},
                                      Sizes{3, 700, 1}, Sizes{65, 1, 9}}) {
    const Matrix<float> x = random_matrix(random, rows, in);
    const Matrix<float> w = random_matrix(random, out, in);
    const Matrix<float> b = random_matrix(random, 1, out);
    const Matrix<float> dy = random_matrix(random, rows, out);
    Matrix<float> y(rows, out), dx(rows, in), dw(out, in), db(1, out);
    dense_forward(pool, x.view(), w.view(), b.span(), false, y.view());
    dense_input_gradient(pool, dy.view(), w.view(), false, dx.view());
    for (int twice = 0; twice < 2; ++twice) {  // weight gradients add up
      dense_weight_gradient(pool, dy.view(), x.view(), dw.view());
      add_column_sums(pool, dy.view(), db.span());
    }
    const auto near = [](double found, double want, size_t terms) {
      EXPECT_NEAR(found, want, 1e-5 * std::sqrt(static_cast<double>(terms)) + 1e-6);
    };
    for (size_t t = 0; t < rows; ++t) {
      for (size_t o = 0; o < out; ++o) {
        double sum = b(0, o);
        for (size_t i = 0; i < in; ++i) sum += static_cast<double>(x(t, i)) * w(o, i);
        near(y(t, o), sum, in);
      }
      for (size_t i = 0; i < in; ++i) {
        double sum = 0;
        for (size_t o = 0; o < out; ++o) sum += static_cast<double>(dy(t, o)) * w(o, i);
        near(dx(t, i), sum, out);
      }
    }
    for (size_t o = 0; o < out; ++o) {
      double bias = 0;
      for (size_t t = 0; t < rows; ++t) bias += 2.0 * static_cast<double>(dy(t, o));
      near(db(0, o), bias, 4 * rows);
      for (size_t i = 0; i < in; ++i) {
        double sum = 0;
        for (size_t t = 0; t < rows; ++t) sum += 2.0 * static_cast<double>(dy(t, o)) * x(t, i);
        near(dw(o, i), sum, 4 * rows);
      }
    }
  }
}

TEST(Dense, RefusesShapesThatDoNotFit) {
  ThreadPool pool(1);
  Matrix<float> x(3, 4), w(5, 4), y(3, 6);
  EXPECT_THROW(dense_forward(pool, x.view(), w.view(), {}, false, y.view()), Error);
  EXPECT_THROW(dense_input_gradient(pool, y.view(), w.view(), false, x.view()), Error);
  EXPECT_THROW(dense_weight_gradient(pool, y.view(), x.view(), w.view()), Error);
}

TEST(Embedding, AddsRowsAndTheirGradients) {
  ThreadPool pool(3);
  Random random(6);
  const Matrix<float> table = random_matrix(random, 11, 70);
  const std::vector<int32_t> ids = {3, 10, 3, 0, 3};
  Matrix<float> out(5, 70), dtable(11, 70);
  add_table_rows(pool, table.view(), ids, out.view());
  for (size_t t = 0; t < 5; ++t) {
    for (size_t i = 0; i < 70; ++i) {
      EXPECT_EQ(out(t, i), table(static_cast<size_t>(ids[t]), i));
    }
  }
  const Matrix<float> dout = random_matrix(random, 5, 70);
  add_table_gradient(pool, dout.view(), ids, dtable.view());
  for (size_t i = 0; i < 70; ++i) {
    EXPECT_EQ(dtable(3, i), dout(0, i) + dout(2, i) + dout(4, i));
    EXPECT_EQ(dtable(10, i), dout(1, i));
    EXPECT_EQ(dtable(5, i), 0.f);
  }
  EXPECT_THROW(add_table_rows(pool, table.view(), std::vector<int32_t>{11, 0, 0, 0, 0}, out.view()),
               Error);
}

}  // namespace
}  // namespace halflin
