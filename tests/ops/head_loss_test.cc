// The losses over the vocabulary against their formulas in float64, for vocabularies of one chunk
// and of several.
#include "halflin/ops/head_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gradient_check.h"
#include "halflin/base/error.h"

namespace halflin {
namespace {

constexpr size_t kWidth = 6;

std::vector<double> log_softmax(const Matrix<float>& hidden, size_t t, const Matrix<float>& weight,
                                std::span<const float> bias, double temperature) {
  std::vector<double> z(weight.rows());
  double sum = 0;
  for (size_t v = 0; v < z.size(); ++v) {
    double dot = bias.empty() ? 0.0 : static_cast<double>(bias[v]);
    for (size_t i = 0; i < kWidth; ++i) dot += static_cast<double>(hidden(t, i)) * weight(v, i);
    z[v] = dot / temperature;
    sum += std::exp(z[v]);
  }
  for (double& v : z) v -= std::log(sum);
  return z;
}

// From d loss_t / d logits: what head_losses should have returned.
struct Expected {
  std::vector<double> losses;
  Matrix<double> hidden, weight;
  std::vector<double> bias;
};

struct Case {
  Matrix<float> hidden, weight, bias, teacher_hidden, teacher_weight;
  std::vector<int32_t> labels;

  Case(size_t rows, size_t vocab) {
    Random random(vocab);
    hidden = random_matrix(random, rows, kWidth);
    weight = random_matrix(random, vocab, kWidth);
    bias = random_matrix(random, 1, vocab);
    teacher_hidden = random_matrix(random, rows, kWidth);
    teacher_weight = random_matrix(random, vocab, kWidth);
    for (size_t t = 0; t < rows; ++t) {
      labels.push_back(t % 5 == 3 ? -1 : static_cast<int32_t>(random.below(vocab)));
    }
  }

  Expected expected(double scale, bool distil, double temperature) const {
    const size_t vocab = weight.rows();
    Expected e{std::vector<double>(hidden.rows()), Matrix<double>(hidden.rows(), kWidth),
               Matrix<double>(vocab, kWidth), std::vector<double>(vocab)};
    for (size_t t = 0; t < hidden.rows(); ++t) {
      if (labels[t] < 0) continue;
      const std::vector<double> p = log_softmax(hidden, t, weight, bias.span(), temperature);
      std::vector<double> q(vocab, -INFINITY);
      if (distil) q = log_softmax(teacher_hidden, t, teacher_weight, {}, temperature);
      for (size_t v = 0; v < vocab; ++v) {
        const bool is_label = v == static_cast<size_t>(labels[t]);
        const double target = distil ? std::exp(q[v]) : is_label ? 1.0 : 0.0;
        if (distil) {
          e.losses[t] += temperature * temperature * target * (q[v] - p[v]);
        } else if (is_label) {
          e.losses[t] = -p[v];
        }
        const double dz = scale * temperature * (std::exp(p[v]) - target);
        e.bias[v] += dz;
        for (size_t i = 0; i < kWidth; ++i) {
          e.hidden(t, i) += dz * static_cast<double>(weight(v, i));
          e.weight(v, i) += dz * static_cast<double>(hidden(t, i));
        }
      }
    }
    return e;
  }
};

void expect_close(std::span<const double> want, std::span<const float> found, double tolerance) {
  ASSERT_EQ(want.size(), found.size());
  double square = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    square += std::pow(want[i] - static_cast<double>(found[i]), 2);
    norm += want[i] * want[i];
  }
  EXPECT_LT(std::sqrt(square / norm), tolerance);
}

class HeadLosses : public testing::TestWithParam<size_t> {};

TEST_P(HeadLosses, LabelsAndTeachers) {
  const size_t vocab = GetParam();
  const size_t rows = vocab > 1000 ? 21 : 531;  // 531: two blocks of rows
  const Case c(rows, vocab);
  const Head teacher = make_head(c.teacher_weight.view(), {}, Precision::kF32);
  for (const bool distil : {false, true}) {
    const float temperature = distil ? 1.7f : 1.f;
    const Expected want = c.expected(0.25, distil, double{temperature});
    std::vector<Matrix<float>> runs;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      HeadTarget target;
      target.labels = c.labels;
      if (distil) {
        target.teacher = &teacher;
        target.teacher_hidden = c.teacher_hidden.view();
        target.temperature = temperature;
      }
      Matrix<float> dhidden(rows, kWidth), dweight(vocab, kWidth), dbias(1, vocab);
      HeadLossScratch scratch;
      std::vector<float> losses(rows);
      head_losses(pool, {c.weight.view(), c.bias.span()}, c.hidden.view(), target,
                  {0.25f, dhidden.view(), dweight.view(), dbias.span()}, scratch, losses);
      expect_close(want.losses, losses, 1e-5);
      expect_close(want.hidden.span(), dhidden.span(), 1e-5);
      expect_close(want.weight.span(), dweight.span(), 1e-5);
      expect_close(want.bias, dbias.span(), 1e-5);
      runs.push_back(std::move(dweight));
    }
    EXPECT_EQ(0, std::memcmp(runs[0].data(), runs[1].data(), runs[0].size() * sizeof(float)));
  }
}

// Every row the same: the drawn labels' frequencies are the head's probabilities.
TEST_P(HeadLosses, DrawnLabelsFollowThePredictions) {
  const size_t vocab = GetParam();
  const size_t rows = 4000;
  Case c(1, vocab);
  // A few tokens, in different chunks, share most of the probability.
  const std::vector<size_t> likely = {0, vocab / 3, vocab / 2, vocab - 1};
  for (float& v : c.weight.span()) v = 0.f;
  for (float& v : c.bias.span()) v = -12.f;
  const double shares[] = {0.1, 0.4, 0.3, 0.2};
  for (size_t i = 0; i < 4; ++i) c.bias(0, likely[i]) = static_cast<float>(std::log(shares[i]));
  Matrix<float> hidden(rows, kWidth);
  std::vector<int32_t> labels(rows, 0), drawn(rows);
  labels[7] = -1;
  HeadTarget target;
  target.labels = labels;
  target.sample_seed = 11;
  std::vector<float> losses(rows);
  HeadLossScratch scratch;
  ThreadPool pool(2);
  head_losses(pool, {c.weight.view(), c.bias.span()}, hidden.view(), target, {}, scratch, losses,
              drawn);
  EXPECT_EQ(drawn[7], -1);
  EXPECT_EQ(losses[7], 0.f);
  const double rest = static_cast<double>(vocab - 4) * std::exp(-12.0);
  for (size_t i = 0; i < 4; ++i) {
    const double p = shares[i] / (1 + rest);
    const auto seen = std::count(drawn.begin(), drawn.end(), static_cast<int32_t>(likely[i]));
    const double sd = std::sqrt(p * (1 - p) / rows);
    EXPECT_NEAR(static_cast<double>(seen) / rows, p, 4.5 * sd);
  }
  // The same labels, given: the same losses.
  std::vector<float> given(rows);
  HeadTarget plain;
  plain.labels = drawn;
  head_losses(pool, {c.weight.view(), c.bias.span()}, hidden.view(), plain, {}, scratch, given);
  EXPECT_EQ(losses, given);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, HeadLosses, testing::Values(37, 4096, 9001));

TEST(HeadLosses, RefuseWhatDoesNotFit) {
  const Case c(3, 40);
  ThreadPool pool(1);
  HeadLossScratch scratch;
  std::vector<float> losses(3);
  HeadTarget target;
  const std::vector<int32_t> outside = {0, 40, 1};
  target.labels = outside;
  EXPECT_THROW(
      head_losses(pool, {c.weight.view(), {}}, c.hidden.view(), target, {}, scratch, losses),
      Error);
}

}  // namespace
}  // namespace halflin
