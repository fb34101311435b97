#include "halflin/measure/routing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "halflin/base/random.h"
#include "halflin/measure/perplexity.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

class RoutingTest : public testing::Test {
 protected:
  ThreadPool pool_{2};
  Model model_ =
      load_model(pool_, read_checkpoint(HALFLIN_FIXTURES "/models/llama_gqa"), Precision::kF32, 16);
  size_t d_ = model_.config.d_model;
  std::vector<Batch> batches_ = [this] {
    Random random(1, "text");
    std::vector<Batch> batches(5);
    for (Batch& batch : batches) {
      std::vector<int32_t> ids(16);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.below(model_.config.vocab));
      batch.add(ids);
    }
    return batches;
  }();
  std::atomic<bool> stop_{false};
  Progress progress_{"", 1, true};

  // Layer 0: two options with gates; the last layer: one option for all.
  std::vector<MlpPath> paths() {
    Random random(2, "paths");
    const auto matrix = [&](size_t rows, size_t cols) {
      Matrix<float> m(rows, cols);
      for (float& v : m.span()) v = 0.2f * static_cast<float>(random.normal());
      return m;
    };
    const auto gate = [&] {
      Gate gate{.name = "harm", .weight = std::vector<float>(d_)};
      for (float& w : gate.weight) w = static_cast<float>(random.normal());
      return gate;
    };
    std::vector<MlpPath> paths(model_.config.layers);
    CheapPath affine, low_rank;
    affine.affine = Linear(matrix(d_, d_).view(), false, {}, Precision::kF32);
    low_rank.low_rank_in = Linear(matrix(2, d_).view(), false, {}, Precision::kF32);
    low_rank.low_rank_out = Linear(matrix(d_, 2).view(), false, {}, Precision::kF32);
    paths.front().options.push_back({std::make_shared<CheapPath>(low_rank), gate()});
    paths.front().options.push_back({std::make_shared<CheapPath>(affine), gate()});
    paths.back().options.push_back({std::make_shared<CheapPath>(low_rank), {}});
    return paths;
  }
};

TEST_F(RoutingTest, LossesAreThoseOfTheForwardPass) {
  for (const std::vector<MlpPath>& some : {std::vector<MlpPath>(model_.config.layers), paths()}) {
    const auto routed = route_batches(pool_, model_, batches_, some, stop_, progress_);
    const auto losses = batch_losses(pool_, model_, batches_, some, progress_);
    for (size_t b = 0; b < batches_.size(); ++b) EXPECT_EQ(routed[b].losses, losses[b]);
  }
}

TEST_F(RoutingTest, CountsWhatEveryTokenCosts) {
  const std::vector<MlpPath> some = paths();
  const auto routed = route_batches(pool_, model_, batches_, some, stop_, progress_);
  const RouteCosts costs = route_costs(model_, some, 16);
  const Saving found = saving(costs, routed);
  const size_t last = model_.config.layers - 1;
  const double full = path_flops(model_.layers[0].mlp);
  double spent = 0, tokens = 0;
  size_t first = 0, second = 0;
  for (const RoutedBatch& batch : routed) {
    for (size_t t = 0; t < batch.losses.size(); ++t) {
      ++tokens;
      const uint8_t route = batch.routes(0, t);
      spent += route == 1   ? 2.0 * d_ + 2.0 * d_ * 4
               : route == 2 ? 4.0 * d_ + 2.0 * d_ * d_
                            : 4.0 * d_ + full;
      first += route == 1;
      second += route == 2;
      EXPECT_EQ(batch.routes(last, t), 1);
      spent += 2.0 * d_ * 4;
    }
  }
  ASSERT_GT(first, 0u);
  ASSERT_GT(second, 0u);
  ASSERT_LT(first + second, tokens);
  const double dense = flops_per_token(model_.config, 16).total() * tokens;
  EXPECT_NEAR(found.flops_pct, 100 * (2 * full * tokens - spent) / dense, 1e-9);
  EXPECT_NEAR(found.rates[0][0], first / tokens, 1e-12);
  EXPECT_NEAR(found.rates[0][1], second / tokens, 1e-12);
  EXPECT_EQ(found.rates[last][0], 1);
  EXPECT_GT(found.bytes_pct, 0);
}

TEST_F(RoutingTest, ARouterHasTheLastWord) {
  const std::vector<MlpPath> some = paths();
  const auto routed = route_batches(pool_, model_, batches_, some, stop_, progress_,
                                    [](size_t, size_t, std::span<uint8_t> routes) {
                                      std::fill(routes.begin(), routes.end(), uint8_t{0});
                                    });
  const auto dense = batch_losses(pool_, model_, batches_, {}, progress_);
  for (size_t b = 0; b < batches_.size(); ++b) EXPECT_EQ(routed[b].losses, dense[b]);
}

TEST_F(RoutingTest, DoesNotDependOnThreadsAndCanBeStopped) {
  ThreadPool one(1);
  const std::vector<MlpPath> some = paths();
  const auto a = route_batches(pool_, model_, batches_, some, stop_, progress_);
  const auto b = route_batches(one, model_, batches_, some, stop_, progress_);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].losses, b[i].losses);
    EXPECT_TRUE(std::equal(a[i].routes.span().begin(), a[i].routes.span().end(),
                           b[i].routes.span().begin()));
  }
  stop_ = true;
  EXPECT_THROW(route_batches(pool_, model_, batches_, some, stop_, progress_), Error);
}

}  // namespace
}  // namespace halflin
