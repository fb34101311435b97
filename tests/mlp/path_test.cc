// The seam: each token must come out as the path it was routed to, alone, would give it.
#include "halflin/mlp/path.h"

#include <gtest/gtest.h>

#include <random>

namespace halflin {
namespace {

constexpr size_t kRows = 300, kWidth = 24, kNeurons = 40;

Linear random_linear(size_t in, size_t out, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.f, 0.3f);
  Matrix<float> weight(out, in);
  std::vector<float> bias(out);
  for (float& v : weight.span()) v = normal(random);
  for (float& v : bias) v = normal(random);
  return {weight.view(), /*in_by_out=*/false, bias, Precision::kF32};
}

struct Seam : testing::Test {
  Seam() : x(kRows, kWidth) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : x.span()) v = normal(random);
    mlp.up = random_linear(kWidth, kNeurons, 2);
    mlp.down = random_linear(kNeurons, kWidth, 3);
    scratch = MlpScratch(Precision::kF32, kRows, kWidth, kNeurons, false);
    for (unsigned i = 0; i < 2; ++i) {
      auto cheap = std::make_shared<CheapPath>();
      cheap->affine = random_linear(kWidth, kWidth, 10 + i);
      Gate gate{.name = "test", .weight = std::vector<float>(kWidth, 0.f), .threshold = 0.5f};
      gate.weight[i] = 1.f;  // the first option where x[0] > 1/2, the second where x[1] > 1/2
      path.options.push_back({cheap, gate});
    }
  }

  size_t expected_route(size_t t) const { return x(t, 0) > 0.5f ? 1 : x(t, 1) > 0.5f ? 2 : 0; }
  Matrix<float> run(const MlpPath& which, int threads, std::span<uint8_t> route = {}) {
    ThreadPool pool(threads);
    Matrix<float> y(kRows, kWidth);
    for (float& v : y.span()) v = 1.f;
    apply_path(pool, mlp, which, x.view(), /*accumulate=*/true, y.view(), scratch, route);
    return y;
  }

  Matrix<float> x;
  Mlp mlp;
  MlpPath path;
  MlpScratch scratch;
};

TEST_F(Seam, EachTokenTakesTheFirstOptionThatLetsItPass) {
  std::vector<uint8_t> route(kRows, 9);
  const Matrix<float> routed = run(path, 1, route);
  std::vector<Matrix<float>> alone;
  alone.push_back(run({}, 1));
  for (const PathOption& option : path.options) alone.push_back(run({{{option.path, {}}}}, 1));
  std::vector<size_t> taken(3);
  for (size_t t = 0; t < kRows; ++t) {
    ASSERT_EQ(route[t], expected_route(t)) << t;
    ++taken[route[t]];
    for (size_t c = 0; c < kWidth; ++c) {
      ASSERT_NEAR(routed(t, c), alone[route[t]](t, c), 1e-5f) << t;
    }
  }
  for (const size_t count : taken) EXPECT_GT(count, 20u);
}

TEST_F(Seam, DoesNotDependOnTheNumberOfThreads) {
  const Matrix<float> one = run(path, 1);
  const Matrix<float> three = run(path, 3);
  EXPECT_TRUE(std::ranges::equal(one.span(), three.span()));
}

TEST_F(Seam, BatchesAndSingleTokensTakeTheSameRoutes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (PathOption& option : path.options) {
    for (float& w : option.gate->weight) w = normal(random);
  }
  OperandBuffer rounded(Precision::kBF16, kRows, kWidth);
  const MutableOperand bf16_x = rounded.view(kRows, kWidth);
  convert(x.view(), bf16_x);
  for (const Operand rows : {Operand(x.view()), Operand(bf16_x)}) {
    // Thresholds that are scores: one bit more or less would be another route.
    std::vector<float> row(kWidth);
    const auto widen = [&](size_t t) {
      for (size_t c = 0; c < kWidth; ++c) {
        row[c] = rows.is_bf16 ? to_float(bf16_x.bf16_row(t)[c]) : x(t, c);
      }
      return row.data();
    };
    for (size_t i = 0; i < path.options.size(); ++i) {
      Gate& gate = *path.options[i].gate;
      gate.threshold = gate_score(gate, widen(11 + i));
    }
    std::vector<uint8_t> routes(kRows);
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      choose_routes(pool, path, rows, routes);
      for (size_t t = 0; t < kRows; ++t) ASSERT_EQ(routes[t], choose_route(path, widen(t))) << t;
    }
  }
}

TEST_F(Seam, AnOptionWithoutGateTakesAllThatIsLeft) {
  path.options[1].gate.reset();
  std::vector<uint8_t> route(kRows, 9);
  run(path, 1, route);
  for (size_t t = 0; t < kRows; ++t) EXPECT_EQ(route[t], x(t, 0) > 0.5f ? 1 : 2);
  path.options.erase(path.options.begin());
  run(path, 1, route);
  for (const uint8_t way : route) EXPECT_EQ(way, 1);
}

}  // namespace
}  // namespace halflin
