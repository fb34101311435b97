// Healing: what is trained comes nearer to the teacher, gates keep their unit and feel the price,
// and nothing else moves.
#include "halflin/train/heal.h"

#include <gtest/gtest.h>

#include "halflin/base/random.h"
#include "halflin/measure/paths.h"
#include "halflin/train/allocation_places.h"
#include "halflin/train/checkpoint.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

constexpr size_t kWindow = 16;

class HealTest : public testing::TestWithParam<const char*> {
 protected:
  ThreadPool pool_{2};
  Checkpoint checkpoint_ = read_checkpoint(std::string(HALFLIN_FIXTURES "/models/") + GetParam());
  Model original_ = load_model(pool_, read_checkpoint(checkpoint_.path), Precision::kF32, kWindow);
  Windows text_ = [this] {
    Random random(5, "text");
    std::vector<int32_t> ids(24 * kWindow);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(original_.config.vocab));
    return Windows(std::move(ids), kWindow, std::nullopt);
  }();
  TemporaryFolder folder_;
  std::atomic<bool> stop_{false};
  HealOptions options_ = [] {
    HealOptions options;
    options.train.steps = options.train.schedule.steps = 60;
    options.train.batch = 4;
    options.train.schedule.peak = 5e-3;
    options.train.optimizer.weight_decay = 0;
    options.train.quiet = true;
    return options;
  }();

  // Linear surrogates of zeros: for every token of layer 0, for about half of layer 1's.
  Allocation zeros() const {
    const size_t d = original_.config.d_model;
    Allocation allocation;
    allocation.model = allocation_model("fixture", checkpoint_);
    allocation.layers.resize(original_.config.layers);
    for (size_t l = 0; l < 2; ++l) {
      PlainOption option;
      option.path.kind = "linear";
      option.path.affine.weight = Matrix<float>(d, d);
      option.path.affine.bias.assign(d, 0.f);
      allocation.layers[l].push_back(std::move(option));
    }
    Gate gate{.name = "harm", .weight = std::vector<float>(d), .bias = 2};
    Random random(3, "gate");
    for (float& w : gate.weight) w = static_cast<float>(random.uniform() - 0.5);
    gate.threshold = 2;
    allocation.layers[1].front().gate = gate;
    return allocation;
  }
  TrainModel heal(Allocation& allocation, std::vector<double> costs = {}, int run = 0) {
    costs.resize(original_.config.layers);
    const std::filesystem::path directory = folder_.path / std::to_string(run);
    std::filesystem::create_directories(directory);
    return halflin::heal(pool_, checkpoint_, original_, allocation, costs, text_, options_,
                         {directory, "this run"}, stop_);
  }
  // Mean KL divergence of the whole text, nats a token, and the share of layer 1 that is cheap.
  struct Seen {
    double divergence = 0, cheap = 0;
  };
  Seen see(const Allocation& allocation) {
    TrainModel model = load_train_model(pool_, checkpoint_, kWindow);
    set_places(model, allocation);
    Workspace workspace(original_, kWindow);
    Objective objective;
    objective.kind = Objective::Kind::kDistill;
    objective.teacher = {.model = &original_, .paths = {}, .workspace = &workspace};
    TrainWorkspace own;
    Seen seen;
    for (size_t w = 0; w < text_.count(); ++w) {
      const PassResult pass = evaluate(pool_, model, text_.batch(w), objective, own);
      seen.divergence += pass.loss_sum / static_cast<double>(text_.count() * kWindow);
      seen.cheap += (1 - pass.gates[1].full) / static_cast<double>(text_.count());
    }
    return seen;
  }
};

TEST_P(HealTest, ComesNearerToTheTeacher) {
  Allocation allocation = zeros();
  const double before = see(allocation).divergence;
  ASSERT_GT(before, 0);
  heal(allocation);
  EXPECT_LT(see(allocation).divergence, 0.7 * before);
}

TEST_P(HealTest, GatesKeepTheirUnit) {
  options_.gate_rate = 0;
  const Allocation before = zeros();
  Allocation allocation = zeros();
  heal(allocation);
  const Gate& was = *before.layers[1].front().gate;
  const Gate& is = *allocation.layers[1].front().gate;
  EXPECT_EQ(is.threshold, was.threshold);
  EXPECT_NEAR(is.bias, was.bias, 1e-6);
  EXPECT_EQ(is.weight, was.weight);
  EXPECT_EQ(is.name, "harm");
  EXPECT_FALSE(allocation.layers[0].front().gate.has_value());
}

TEST_P(HealTest, APriceOpensGates) {
  options_.gate_rate = 2;
  Allocation dear = zeros(), free = zeros();
  heal(dear, {0, 0.1}, 0);
  heal(free, {0, 0}, 1);
  EXPECT_GT(see(dear).cheap, see(zeros()).cheap + 0.1);
  EXPECT_GT(see(dear).cheap, see(free).cheap + 0.1);
}

TEST_P(HealTest, WeightsMoveOnlyWhenAsked) {
  const TrainModel was = load_train_model(pool_, checkpoint_, kWindow);
  const auto moved = [&](const TrainModel& is, size_t layer) {
    return std::ranges::equal(is.layers[layer].qkv.weight.value.span(),
                              was.layers[layer].qkv.weight.value.span()) == false;
  };
  Allocation allocation = zeros();
  EXPECT_FALSE(moved(heal(allocation, {}, 0), 0));
  options_.weights = true;
  allocation = zeros();
  const TrainModel healed = heal(allocation, {}, 1);
  EXPECT_TRUE(moved(healed, 0));
  // A layer's MLP that no token takes stays.
  EXPECT_TRUE(std::ranges::equal(healed.layers[0].mlp.full->up.weight.value.span(),
                                 was.layers[0].mlp.full->up.weight.value.span()));
  EXPECT_FALSE(std::ranges::equal(healed.layers[1].mlp.full->up.weight.value.span(),
                                  was.layers[1].mlp.full->up.weight.value.span()));
}

INSTANTIATE_TEST_SUITE_P(Models, HealTest, testing::Values("gpt2_base", "llama_gqa", "neox_base"));

}  // namespace
}  // namespace halflin
