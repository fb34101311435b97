// Training runs: order of the text, resuming bit by bit, and what stops a run.
#include "halflin/train/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/measure/walk.h"
#include "halflin/train/architecture.h"
#include "halflin/train/state.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::atomic<bool> go_on{false};

json small_architecture() {
  return json::parse(R"({
    "family": "gpt2", "layers": 3, "d_model": 16, "heads": 2, "positions": 16, "tokenizer": "t",
    "mlp": {"layers": {"1": {"kind": "linear"},
                       "2": {"kind": "gated", "gate_hidden": 4, "route": "soft"}}},
    "gate_penalty": {"mean_weight": 0.1, "from_step": 3}})");
}

// Text that can be learned: a walk that mostly goes to the next id.
std::vector<int32_t> walk(size_t tokens, int32_t vocab) {
  Random random(7);
  std::vector<int32_t> ids{0};
  while (ids.size() < tokens) {
    const bool jump = random.uniform() < 0.1;
    ids.push_back(jump ? static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)))
                       : (ids.back() + 1) % vocab);
  }
  return ids;
}

struct Trial {
  ThreadPool pool;
  ArchitectureSpec spec = parse_architecture(small_architecture(), "a.json");
  TrainModel model = make_new_model(spec, 19, 16);
  Windows text{walk(640, 19), 16, {}, "text.txt"};
  Windows held_out{walk(160, 19), 16, {}, "valid.txt"};
  TemporaryFolder folder;
  TrainOptions options;

  explicit Trial(int threads = 2) : pool(threads) {
    options.steps = 24;
    options.batch = 3;
    options.accumulate = 2;
    options.schedule = {Schedule::Kind::kCosine, 1e-2, 4, 24, 0.1};
    options.objective.penalty = spec.penalty;
    options.penalty_from = spec.penalty_from;
    options.save_every = 5;
    options.evaluate_every = 7;
    options.quiet = true;
  }
  TrainFiles files() const { return {folder.path, "this run"}; }
  void go(const std::atomic<bool>& stop = go_on) {
    train(pool, model, text, &held_out, options, files(), stop);
  }
  std::string bytes() const { return read_file(files().state()); }
  std::vector<json> log() const {
    std::vector<json> lines;
    std::ifstream file(files().log());
    for (std::string line; std::getline(file, line);) {
      lines.push_back(json::parse(line));
      lines.back().erase("tokens_per_s");
    }
    return lines;
  }
};

TEST(WindowOrder, EachPassTakesEachWindowOnce) {
  WindowOrder order(50, 1), again(50, 1), other(50, 2);
  std::vector<size_t> first, second, with_other_seed;
  for (uint64_t i = 0; i < 50; ++i) {
    first.push_back(order.at(i));
    with_other_seed.push_back(other.at(i));
  }
  for (uint64_t i = 50; i < 100; ++i) second.push_back(order.at(i));
  EXPECT_EQ(again.at(73), second[23]);  // from anywhere
  EXPECT_EQ(again.at(3), first[3]);
  EXPECT_EQ(std::set<size_t>(first.begin(), first.end()).size(), 50u);
  EXPECT_EQ(std::set<size_t>(second.begin(), second.end()).size(), 50u);
  EXPECT_NE(first, second);
  EXPECT_NE(first, with_other_seed);
}

TEST(Train, Learns) {
  Trial run;
  run.go();
  const std::vector<json> log = run.log();
  ASSERT_EQ(log.size(), 24u);
  EXPECT_NEAR(log.front()["loss"].get<double>(), std::log(19.0), 0.2);
  EXPECT_LT(log.back()["loss"].get<double>(), 2.2);
  EXPECT_LT(log.back()["valid_loss"].get<double>(), 2.2);
  EXPECT_EQ(log[1]["penalty"], 0.0);
  EXPECT_GT(log[2]["penalty"], 0.0);
  EXPECT_GT(log.back()["grad_norm"].get<double>(), 0.0);
  EXPECT_EQ(log.back()["tokens"], 24 * 6 * 16);
  EXPECT_NEAR(log[23]["learning_rate"].get<double>(), 1e-3, 1e-9);
  EXPECT_TRUE(log[6].contains("valid_loss"));
  EXPECT_FALSE(log[7].contains("valid_loss"));
}

TEST(Train, ThreadsChangeNothing) {
  Trial one(1), three(3);
  one.go();
  three.go();
  EXPECT_EQ(one.bytes(), three.bytes());
  EXPECT_EQ(one.log(), three.log());
}

// A run that is cut off at step `cut`, by an exception from the held-out text or by nothing but a
// smaller number of steps, then goes on.
TEST(Train, GoesOnBitByBit) {
  Trial whole;
  whole.go();
  for (const size_t cut : {size_t{1}, size_t{9}, size_t{23}}) {
    Trial part;
    part.options.steps = cut;
    part.options.schedule.steps = 24;
    part.options.evaluate_every = 7;
    part.go();
    // What a killed run leaves behind its state: lines of later steps, one of them in part.
    std::ofstream(part.files().log(), std::ios::app)
        << json{{"step", cut + 1}, {"loss", 0.5}}.dump() << "\n{\"step\": " << cut + 2 << ", \"lo";
    Trial rest;
    fs::copy(part.folder.path, rest.folder.path, fs::copy_options::recursive);
    rest.go();
    EXPECT_EQ(whole.bytes(), rest.bytes()) << cut;
    std::vector<json> want = whole.log();
    std::vector<json> found = rest.log();
    found[cut - 1].erase("valid_loss");  // the shorter run evaluated at its end
    want[cut - 1].erase("valid_loss");
    EXPECT_EQ(want, found) << cut;
  }
}

TEST(Train, StopsAndGoesOn) {
  Trial whole, stopped;
  whole.go();
  const std::atomic<bool> stop{true};
  EXPECT_THROW(stopped.go(stop), Interrupted);
  EXPECT_EQ(saved_steps(stopped.files()), 0u);
  stopped.go();
  EXPECT_EQ(whole.bytes(), stopped.bytes());
}

// Two passes of 3 windows are one of 6, up to rounding.
TEST(Train, AccumulatesGradients) {
  Trial two, one;
  for (Trial* run : {&two, &one}) {
    run->options.steps = run->options.schedule.steps = 5;
    // The gates' mean is over a pass: their penalty alone differs.
    run->options.objective.penalty = {};
  }
  one.options.batch = 6;
  one.options.accumulate = 1;
  two.go();
  one.go();
  const std::vector<json> a = one.log(), b = two.log();
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(a[i]["loss"].get<double>(), b[i]["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(a[i]["grad_norm"].get<double>(), b[i]["grad_norm"].get<double>(), 1e-3);
  }
}

TEST(Train, DivergenceNamesTheStepAndKeepsTheState) {
  Trial run;
  run.options.steps = run.options.schedule.steps = 5;
  run.go();
  const std::string good = run.bytes();
  run.options.steps = run.options.schedule.steps = 30;
  run.options.save_every = 1;
  run.options.schedule.peak = 1e30;
  run.options.schedule.warmup = 0;
  run.options.optimizer.clip = 0;
  const std::string message = error_of([&] { run.go(); });
  EXPECT_NE(message.find("step "), std::string::npos) << message;
  EXPECT_EQ(saved_steps(run.files()) + 1, std::stoul(message.substr(message.find("step ") + 5)))
      << message;
  // Whatever was saved is finite.
  Optimizer optimizer = make_optimizer(run.model, run.options.optimizer);
  load_state(run.files().state(), "this run", optimizer);
  for (const ParameterMoments& m : optimizer.moments) {
    for (const float v : m.parameter->value.span()) ASSERT_TRUE(std::isfinite(v));
  }
  EXPECT_FALSE(good.empty());
}

TEST(Train, RefusesWhatDoesNotFit) {
  Trial run;
  run.options.batch = 41;  // windows; the text has 40
  std::string message = error_of([&] { run.go(); });
  EXPECT_NE(message.find("text.txt: too short"), std::string::npos) << message;
  run.options.batch = 3;
  run.options.steps = run.options.schedule.steps = 2;
  run.go();
  TrainFiles other = run.files();
  other.identity = "another run";
  message =
      error_of([&] { train(run.pool, run.model, run.text, nullptr, run.options, other, go_on); });
  EXPECT_NE(message.find("another run"), std::string::npos) << message;
  run.options.optimizer.rules = {{"embedding", true, 1, {}}};
  message = error_of([&] { run.go(); });
  EXPECT_NE(message.find("tensors"), std::string::npos) << message;
  std::ofstream(run.files().state(), std::ios::trunc) << "no state";
  message = error_of([&] { run.go(); });
  EXPECT_NE(message.find("state.safetensors"), std::string::npos) << message;
}

}  // namespace
}  // namespace halflin
