// Allocation as a whole, on tiny models: that figures are those of the file that is written, that
// the budget is kept where it is promised, and that nothing depends on what it should not.
#include "halflin/measure/allocate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "halflin/base/random.h"
#include "halflin/measure/allocation_controls.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/perplexity.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

constexpr size_t kWindow = 24;

// Text that has something to learn from: the models are random, so any is as good.
Windows text(size_t vocab, size_t windows, uint64_t seed = 7) {
  Random random(seed, "text");
  std::vector<int32_t> ids(windows * kWindow);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(vocab));
  return Windows(std::move(ids), kWindow, std::nullopt);
}

Splits split(const Windows& windows) {
  return make_window_splits(windows, {.fit_tokens = 40 * kWindow,
                                      .train_tokens = 30 * kWindow,
                                      .calibration_tokens = 12 * kWindow,
                                      .eval_tokens = 10 * kWindow});
}

class AllocateTest : public testing::TestWithParam<const char*> {
 protected:
  std::string path_ = std::string(HALFLIN_FIXTURES "/models/") + GetParam();
  Model model_ = [this] {
    ThreadPool pool(1);
    return load_model(pool, read_checkpoint(path_), Precision::kF32, kWindow);
  }();
  Splits splits_ = split(text(model_.config.vocab, 92));
  TemporaryFolder folder_;
  AllocateOptions options_ = [] {
    AllocateOptions options;
    options.budget_pct = 0.05;
    options.menu = {.linear = true, .folded = {0.25}, .pruned = {0.5, 0.8}};
    options.multiples = {0.5, 2, 8};
    options.window = kWindow;
    options.draws = 200;
    options.control_tokens = 20 * kWindow;
    return options;
  }();
  std::atomic<bool> stop_{false};
  int runs_ = 0;
  const FitStore* store_ = nullptr;

  AllocateResult run(int threads, const AllocateOptions& options) {
    ThreadPool pool(threads);
    const SampledGradients gradients(folder_.path / std::to_string(runs_++),
                                     first_tokens(splits_.train, 8 * kWindow),
                                     model_.config.d_model);
    std::vector<size_t> layers(model_.config.layers);
    std::iota(layers.begin(), layers.end(), 0);
    prepare_gradients(pool, read_checkpoint(path_), kWindow, Precision::kF32, layers, 0, gradients,
                      stop_, true);
    return allocate(pool, model_, splits_, gradients, store_, options, stop_, true);
  }
  std::string json(const AllocateResult& result) {
    return allocation_json({}, result, options_).dump();
  }
  double delta_ppl_pct(std::span<const Sample> samples, std::span<const MlpPath> paths) {
    ThreadPool pool(1);
    std::vector<Batch> batches;
    for (const Sample& sample : samples) batches.push_back(sample.batch);
    Progress progress("", 1, true);
    LossSum base, routed;
    for (const auto& [sum, some] :
         {std::pair(&base, std::span<const MlpPath>()), std::pair(&routed, paths)}) {
      const auto losses = batch_losses(pool, model_, batches, some, progress);
      for (size_t b = 0; b < batches.size(); ++b) sum->add(losses[b], batches[b].offsets);
    }
    return 100 * std::expm1(routed.mean() - base.mean());
  }
  Allocation allocation(AllocateResult& result) {
    Allocation out;
    out.model = allocation_model("fixture", read_checkpoint(path_));
    out.layers = std::move(result.layers);
    return out;
  }
};

TEST_P(AllocateTest, FiguresAreThoseOfTheFile) {
  AllocateResult result = run(2, options_);
  const double calibrated = result.calibrated.delta_ppl_pct;
  EXPECT_LE(calibrated, options_.budget_pct);
  const AllocationPoint& own = result.points[result.own];
  EXPECT_GT(own.saving.flops_pct, 0);
  const double test = own.delta_ppl.estimate;

  const std::string path = (folder_.path / "a.allocation").string();
  save_allocation(path, allocation(result), /*bf16=*/false);
  ThreadPool pool(2);
  const Allocation loaded = load_allocation_for(path, "fixture", read_checkpoint(path_));
  const std::vector<MlpPath> paths = pack_allocation(pool, model_, loaded);
  EXPECT_NEAR(delta_ppl_pct(splits_.calibration, paths), calibrated, 1e-6);
  EXPECT_NEAR(delta_ppl_pct(splits_.test, paths), test, 1e-6);
}

TEST_P(AllocateTest, ADearerPriceSavesMore) {
  const AllocateResult result = run(2, options_);
  ASSERT_EQ(result.points.size(), 4u);
  for (size_t i = 1; i < result.points.size(); ++i) {
    EXPECT_GT(result.points[i].price, result.points[i - 1].price);
    EXPECT_GE(result.points[i].saving.flops_pct + 1e-3, result.points[i - 1].saving.flops_pct);
  }
}

TEST_P(AllocateTest, DoesNotDependOnThreadsAndRepeatsItself) {
  options_.controls = true;
  options_.fits = {Fit::kDense, Fit::kRouted, Fit::kRoutedOriginal};
  const std::string one = json(run(1, options_));
  EXPECT_EQ(one, json(run(3, options_)));
  EXPECT_EQ(one, json(run(3, options_)));
}

TEST_P(AllocateTest, GoesOnWhereItStopped) {
  options_.fits = {Fit::kDense, Fit::kRoutedOriginal};
  options_.controls = true;
  options_.menu.linear = false;  // then the controls' surrogate is none of the options
  const std::string fresh = json(run(2, options_));
  const FitStore store(folder_.path / "work", {{"kind", "test"}});
  store_ = &store;
  EXPECT_EQ(fresh, json(run(2, options_)));
  // Half of what was there is lost.
  size_t number = 0;
  std::vector<std::filesystem::path> lost;
  for (const auto& file : std::filesystem::recursive_directory_iterator(store.directory())) {
    if (file.is_regular_file() && ++number % 2 == 0) lost.push_back(file.path());
  }
  ASSERT_GE(lost.size(), 3u);
  for (const auto& file : lost) std::filesystem::remove(file);
  EXPECT_EQ(fresh, json(run(3, options_)));
}

TEST_P(AllocateTest, TheTestSplitDecidesNothing) {
  const AllocateResult a = run(2, options_);
  const Splits other = split(text(model_.config.vocab, 92, 8));
  splits_.test = other.test;
  const AllocateResult b = run(2, options_);
  EXPECT_EQ(a.calibrated.price, b.calibrated.price);
  EXPECT_EQ(a.calibrated.delta_ppl_pct, b.calibrated.delta_ppl_pct);
  for (size_t l = 0; l < a.layers.size(); ++l) {
    ASSERT_EQ(a.layers[l].size(), b.layers[l].size());
    for (size_t i = 0; i < a.layers[l].size(); ++i) {
      EXPECT_EQ(a.layers[l][i].gate->threshold, b.layers[l][i].gate->threshold);
    }
  }
  EXPECT_NE(a.points[a.own].delta_ppl.estimate, b.points[b.own].delta_ppl.estimate);
}

TEST_P(AllocateTest, ControlsSaveTheSameFlops) {
  options_.controls = true;
  const AllocateResult result = run(2, options_);
  for (const AllocationPoint& point : result.points) {
    ASSERT_EQ(point.controls.size(), 4u);
    for (const ComparedWith& control : point.controls) {
      // Tokens drawn, neurons counted, scores of other text: near, not equal.
      EXPECT_NEAR(control.flops_pct, point.saving.flops_pct,
                  1 + 0.35 * std::abs(point.saving.flops_pct))
          << control.name;
    }
  }
}

TEST_P(AllocateTest, WholeLayersHaveNoGates) {
  options_.whole_layers = true;
  options_.budget_pct = 5;
  const AllocateResult result = run(2, options_);
  size_t replaced = 0;
  for (const auto& options : result.layers) {
    EXPECT_LE(options.size(), 1u);
    for (const PlainOption& option : options) {
      EXPECT_FALSE(option.gate.has_value());
      ++replaced;
    }
  }
  EXPECT_GT(replaced, 0u);
  EXPECT_LE(result.calibrated.delta_ppl_pct, options_.budget_pct);
}

class HealedAllocateTest : public AllocateTest {
 protected:
  Checkpoint checkpoint_ = read_checkpoint(path_);
  Windows text_ = text(model_.config.vocab, 40, 9);
  Healing healing_{checkpoint_,           text_, {}, 4 * options_.budget_pct, folder_.path / "heal",
                   folder_.path / "model"};

  void SetUp() override {
    TrainOptions& train = healing_.options.train;
    train.steps = train.schedule.steps = 40;
    train.batch = 4;
    train.schedule.peak = 2e-3;
    train.optimizer.weight_decay = 0;
    train.save_every = 10;
    train.quiet = true;
    options_.healing = &healing_;
    options_.controls = true;
  }
  std::string fresh(int threads) {
    std::filesystem::remove_all(healing_.directory);
    return json(run(threads, options_));
  }
};

TEST_P(HealedAllocateTest, IsAFitLikeTheOthers) {
  AllocateResult result = run(2, options_);
  ASSERT_EQ(result.tried.size(), 2u);
  EXPECT_EQ(result.tried[1].fit, Fit::kHealed);
  ASSERT_TRUE(result.before_healing.has_value());
  EXPECT_LE(result.before_healing->best.delta_ppl_pct, healing_.from_pct);
  EXPECT_LE(result.calibrated.delta_ppl_pct, options_.budget_pct);
  EXPECT_FALSE(result.model.has_value());
  if (result.chosen == 1) {
    for (const auto& options : result.layers) EXPECT_LE(options.size(), 1u);
  }
  const double test = result.points[result.own].delta_ppl.estimate;
  ThreadPool pool(2);
  const std::vector<MlpPath> paths = pack_allocation(pool, model_, allocation(result));
  EXPECT_NEAR(delta_ppl_pct(splits_.test, paths), test, 1e-6);
}

TEST_P(HealedAllocateTest, ThreadsAndStopsChangeNothing) {
  const std::string one = fresh(1);
  EXPECT_EQ(one, fresh(3));
  const FitStore store(folder_.path / "work", {{"kind", "test"}});
  store_ = &store;
  EXPECT_EQ(one, fresh(2));
  EXPECT_EQ(one, json(run(2, options_)));  // all of it from the store
  std::filesystem::remove_all(store.directory());
  EXPECT_EQ(one, json(run(3, options_)));  // from the state that training left
}

TEST_P(HealedAllocateTest, WeightsComeWithAModelAndAControl) {
  healing_.options.weights = true;
  options_.budget_pct = 0.3;
  healing_.from_pct = 0.6;
  options_.menu = {.linear = true};  // one path a layer in any case: healing gives none up
  AllocateResult result = run(2, options_);
  const AllocationPoint& own = result.points[result.own];
  ASSERT_EQ(result.chosen, 1u) << json(result);
  ASSERT_TRUE(result.model.has_value());
  ASSERT_TRUE(own.against_control.has_value());
  const ComparedWith& control = own.controls[own.controls.size() - 2];
  EXPECT_EQ(control.name, "healed without paths");
  EXPECT_EQ(own.controls.back().name, "healed, full MLPs");
  // Against the control and of the control make up the whole.
  EXPECT_NEAR(std::log1p(own.delta_ppl.estimate / 100),
              std::log1p(own.against_control->estimate / 100) +
                  std::log1p(control.delta_ppl.estimate / 100),
              1e-9);
  // The model's directory and the file give the same figure.
  ThreadPool pool(2);
  const std::string directory = healing_.model.string();
  const Model healed = load_model(pool, read_checkpoint(directory), Precision::kF32, kWindow);
  Allocation file;
  file.model = allocation_model("healed", read_checkpoint(directory));
  file.layers = std::move(result.layers);
  const std::vector<MlpPath> paths = pack_allocation(pool, healed, file);
  std::vector<Batch> batches;
  for (const Sample& sample : splits_.test) batches.push_back(sample.batch);
  Progress progress("", 1, true);
  LossSum base, routed, full;
  const auto before = batch_losses(pool, model_, batches, {}, progress);
  const auto after = batch_losses(pool, healed, batches, paths, progress);
  const auto without = batch_losses(pool, healed, batches, {}, progress);
  for (size_t b = 0; b < batches.size(); ++b) {
    base.add(before[b], batches[b].offsets);
    routed.add(after[b], batches[b].offsets);
    full.add(without[b], batches[b].offsets);
  }
  EXPECT_NEAR(100 * std::expm1(routed.mean() - base.mean()), own.delta_ppl.estimate, 1e-4);
  EXPECT_NEAR(100 * std::expm1(full.mean() - base.mean()), own.controls.back().delta_ppl.estimate,
              1e-4);
}

TEST_P(AllocateTest, StopsWhenAsked) {
  stop_ = true;
  EXPECT_THROW(run(2, options_), Interrupted);
}

INSTANTIATE_TEST_SUITE_P(Models, AllocateTest,
                         testing::Values("gpt2_base", "llama_gqa", "neox_base"));
INSTANTIATE_TEST_SUITE_P(Models, HealedAllocateTest,
                         testing::Values("gpt2_base", "llama_gqa", "neox_base"));

TEST(RandomControl, SparesSinksAndKeepsTheRates) {
  Sinks sinks;
  sinks.token = {{1, 0, 0, 0}, {0, 0, 1, 0}};
  sinks.count = 2;
  std::vector<MlpPath> paths(1);
  paths[0].options.resize(2);
  const Control control = random_control(paths, {{0.25, 0.5}}, sinks, 3);
  std::vector<uint8_t> routes(4, 7);
  size_t cheap = 0, first = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Control again =
        random_control(paths, {{0.25, 0.5}}, sinks, static_cast<uint64_t>(repeat));
    for (size_t b = 0; b < 2; ++b) {
      again.router(b, 0, routes);
      EXPECT_EQ(routes[b == 0 ? 0 : 2], 0);
      for (const uint8_t route : routes) {
        cheap += route != 0;
        first += route == 1;
      }
    }
  }
  // 400 tokens, 100 of them sinks: 100 and 200 are to take the options.
  EXPECT_NEAR(static_cast<double>(cheap), 300, 1e-9);
  EXPECT_NEAR(static_cast<double>(first), 100, 30);
}

}  // namespace
}  // namespace halflin
