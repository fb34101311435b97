// A layer's paths, fitted together, against the parts they are made of.
#include "halflin/measure/menu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "halflin/base/random.h"
#include "halflin/measure/paths.h"
#include "halflin/mlp/folding.h"
#include "halflin/mlp/pruning.h"
#include "halflin/mlp/surrogate.h"

namespace halflin {
namespace {

constexpr size_t kRows = 400;
constexpr double kRidge = 0.01;

class MenuTest : public testing::TestWithParam<const char*> {
 protected:
  ThreadPool pool_{2};
  Model model_ =
      load_model(pool_, read_checkpoint(std::string(HALFLIN_FIXTURES "/models/") + GetParam()),
                 Precision::kF32, 16);
  MlpWeights weights_ = read_mlp_weights(model_, model_.layers.size() - 1);
  size_t d_ = model_.config.d_model;
  size_t h_ = model_.config.d_mlp;
  MlpScratch scratch_{Precision::kF32, kRows, d_, h_, model_.config.gated_mlp};
  Matrix<float> x_ = [this] {
    Random random(9, "x");
    Matrix<float> x(kRows, d_);
    for (float& v : x.span()) v = static_cast<float>(random.normal());
    return x;
  }();
  MenuOptions options_{
      .linear = true, .folded = {0.5}, .pruned = {0.75, 0.25}, .ranks = {3}, .ridge = kRidge};

  // Rows (x | neurons), and f(x).
  Matrix<float> rows() {
    Matrix<float> rows(kRows, d_ + h_);
    const MutableOperand a = mlp_neurons(pool_, model_.layers.back().mlp, x_.view(), scratch_);
    for (size_t t = 0; t < kRows; ++t) {
      std::copy_n(x_.row(t), d_, rows.row(t));
      std::copy_n(a.f32_row(t), h_, rows.row(t) + d_);
    }
    return rows;
  }
  Matrix<float> full() {
    Matrix<float> f(kRows, d_);
    apply_mlp(pool_, model_.layers.back().mlp, x_.view(), false, f.view(), scratch_);
    return f;
  }
  Matrix<float> outputs(const PlainPath& path) {
    Matrix<float> y(kRows, d_);
    apply_cheap(pool_, pack_path(model_, weights_, path), x_.view(), false, y.view(), scratch_);
    return y;
  }
  static double distance(const Matrix<float>& a, const Matrix<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]);
      sum += d * d;
    }
    return sum;
  }
  // What y misses of f is uncorrelated with all that the path is made of, and 0 on average.
  void expect_least_squares(const PlainPath& path, const Matrix<float>& z, const Matrix<float>& y,
                            const Matrix<float>& f) {
    std::vector<size_t> inputs(d_);
    std::iota(inputs.begin(), inputs.end(), 0);
    for (const int32_t j : path.neurons.kept) inputs.push_back(d_ + static_cast<size_t>(j));
    for (size_t k = 0; k < d_; ++k) {
      double mean = 0;
      for (size_t t = 0; t < kRows; ++t) mean += static_cast<double>(f(t, k) - y(t, k)) / kRows;
      EXPECT_NEAR(mean, 0, 1e-4);
      for (const size_t i : inputs) {
        double product = 0;
        for (size_t t = 0; t < kRows; ++t) {
          product += static_cast<double>(f(t, k) - y(t, k)) * static_cast<double>(z(t, i));
        }
        EXPECT_NEAR(product / kRows, 0, 1e-4);
      }
    }
  }
  void expect_near(const Matrix<float>& a, const Matrix<float>& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a.data()[i], b.data()[i], tolerance) << i;
  }
};

TEST_P(MenuTest, PathsAreThoseOfTheirParts) {
  const Matrix<float> z = rows();
  const Matrix<float> f = full();
  Moments moments(d_ + h_, 0);
  moments.add(pool_, z.view(), MatView<const float>(nullptr, kRows, 0));
  const std::vector<PlainPath> menu = fit_menu(pool_, weights_, moments, options_);
  ASSERT_EQ(menu.size(), 5u);
  for (size_t i = 1; i < menu.size(); ++i) {
    EXPECT_LE(plain_flops(menu[i - 1], d_, model_.config.gated_mlp),
              plain_flops(menu[i], d_, model_.config.gated_mlp));
  }
  for (const PlainPath& path : menu) {
    EXPECT_EQ(plain_flops(path, d_, model_.config.gated_mlp),
              path_flops(pack_path(model_, weights_, path)));
  }

  Moments x_f(d_, d_);
  x_f.add(pool_, x_.view(), f.view());
  Matrix<float> down(h_, d_);
  for (size_t j = 0; j < h_; ++j) {
    for (size_t k = 0; k < d_; ++k) down(j, k) = weights_.down(k, j);
  }
  Moments x_a(d_, h_);
  x_a.add(pool_, x_.view(), z.view().col_range(d_, h_));
  Moments a(h_, 0);
  a.add(pool_, z.view().col_range(d_, h_), MatView<const float>(nullptr, kRows, 0));
  size_t seen = 0;
  for (const PlainPath& path : menu) {
    const Matrix<float> y = outputs(path);
    Matrix<float> expected(kRows, d_);
    if (path.kind == "folded") {
      expect_least_squares(path, z, y, f);
      const CheapPath folded =
          folded_path(model_, weights_,
                      fold_neurons(pool_, fit_neurons(pool_, x_a, kRidge, down.view()), down.view(),
                                   weights_.down_bias, 0.5));
      apply_cheap(pool_, folded, x_.view(), false, expected.view(), scratch_);
      EXPECT_LT(distance(y, f), distance(expected, f));
      ++seen;
      continue;
    }
    if (path.kind == "linear" || path.kind == "low-rank") {
      const CheapPath other = path.kind == "linear"
                                  ? affine_path(ridge(pool_, x_f, kRidge), Precision::kF32)
                                  : low_rank_path(low_rank(pool_, x_f, kRidge, 3), Precision::kF32);
      apply_cheap(pool_, other, x_.view(), false, expected.view(), scratch_);
    } else {
      const double share = path.neurons.kept.size() == (h_ * 3 + 2) / 4 ? 0.75 : 0.25;
      const std::vector<PrunedMlp> all = prune_neurons(
          pool_, a, kRidge, down.view(), weights_.down_bias, std::vector<double>{share});
      const PrunedMlp& pruned = all.front();
      ASSERT_EQ(path.neurons.kept, pruned.kept);
      for (size_t t = 0; t < kRows; ++t) {
        for (size_t k = 0; k < d_; ++k) {
          double sum = pruned.bias[k];
          for (size_t i = 0; i < pruned.kept.size(); ++i) {
            sum += static_cast<double>(z(t, d_ + static_cast<size_t>(pruned.kept[i]))) *
                   static_cast<double>(pruned.down(i, k));
          }
          expected(t, k) = static_cast<float>(sum);
        }
      }
    }
    expect_near(y, expected, 2e-3);
    ++seen;
  }
  EXPECT_EQ(seen, menu.size());
}

TEST_P(MenuTest, TheMlpsOwnOutputsAsTargetsChangeNothing) {
  const Matrix<float> z = rows();
  const Matrix<float> f = full();
  Moments own(d_ + h_, 0);
  own.add(pool_, z.view(), MatView<const float>(nullptr, kRows, 0));
  Moments targets(d_ + h_, d_);
  targets.add(pool_, z.view(), f.view());
  const std::vector<PlainPath> a = fit_menu(pool_, weights_, own, options_);
  const std::vector<PlainPath> b = fit_menu(pool_, weights_, targets, options_);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) expect_near(outputs(a[i]), outputs(b[i]), 2e-3);
}

TEST_P(MenuTest, PathsFollowOtherTargets) {
  const Matrix<float> z = rows();
  Matrix<float> f = full();
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t k = 0; k < d_; ++k) f(t, k) += 0.5f + x_(t, k);  // an affine part more
  }
  Moments targets(d_ + h_, d_);
  targets.add(pool_, z.view(), f.view());
  Moments own(d_ + h_, 0);
  own.add(pool_, z.view(), MatView<const float>(nullptr, kRows, 0));
  const PlainPath moved = std::move(fit_menu(pool_, weights_, targets, {.folded = {0.5}})[1]);
  const PlainPath plain = std::move(fit_menu(pool_, weights_, own, {.folded = {0.5}})[1]);
  ASSERT_EQ(moved.kind, "folded");
  const Matrix<float> a = outputs(moved);
  Matrix<float> b = outputs(plain);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t k = 0; k < d_; ++k) b(t, k) += 0.5f + x_(t, k);
  }
  expect_near(a, b, 2e-3);
}

TEST_P(MenuTest, MeanPruningKeepsTheMean) {
  const Matrix<float> z = rows();
  const Matrix<float> f = full();
  Moments a(h_, 0);
  a.add(pool_, z.view().col_range(d_, h_), MatView<const float>(nullptr, kRows, 0));
  const PlainPath path = mean_pruned_path(weights_, a.mean_x, {0, 3, 4});
  const Matrix<float> y = outputs(path);
  for (size_t k = 0; k < d_; ++k) {
    double want = 0, found = 0;
    for (size_t t = 0; t < kRows; ++t) {
      want += f(t, k);
      found += y(t, k);
    }
    EXPECT_NEAR(want / kRows, found / kRows, 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MenuTest,
                         testing::Values("gpt2_base", "llama_gqa", "llama_biases", "neox_base"));

}  // namespace
}  // namespace halflin
