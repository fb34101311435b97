// Linearisation in stages: what is printed is what the files hold, the control differs by the
// replacement alone, and a run that was stopped ends with the same bytes.
#include "halflin/train/linearize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/perplexity.h"
#include "halflin/measure/routed.h"
#include "halflin/measure/walk.h"
#include "halflin/train/allocation_places.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/linearize_result.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::atomic<bool> go_on{false};

// Text that can be learned: a walk that mostly goes to the next id.
std::vector<int32_t> walk(size_t tokens, size_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids{0};
  while (ids.size() < tokens) {
    const bool jump = random.uniform() < 0.1;
    ids.push_back(static_cast<int32_t>(jump ? random.below(vocab)
                                            : (static_cast<size_t>(ids.back()) + 1) % vocab));
  }
  return ids;
}

LinearizeTexts small_texts(size_t vocab) {
  return make_linearize_texts({"train", walk(3000, vocab, 1)}, std::nullopt,
                              TokenizedText{"second", walk(300, vocab, 2)}, std::nullopt,
                              {.fit = 640,
                               .calibration = 160,
                               .test = 320,
                               .eval_window = 32,
                               .train_window = 16,
                               .train_windows = 2});
}

struct Trial {
  ThreadPool pool;
  Checkpoint checkpoint;
  LinearizeTexts texts;
  TemporaryFolder folder;
  std::atomic<bool> stop{false};
  LinearizeRun run;

  explicit Trial(const std::string& model, int threads = 2)
      : pool(threads),
        checkpoint(read_checkpoint(std::string(HALFLIN_FIXTURES "/models/") + model)),
        texts(small_texts(checkpoint.architecture.config.vocab)),
        run{.pool = pool,
            .original = checkpoint,
            .texts = texts,
            .out = folder.path,
            .identity = "this run",
            .stages = {{{1}, 12}, {{0}, 12}, {{}, 5}},
            .train = {},
            .stop = stop,
            .quiet = true} {
    run.train.batch = 2;
    run.train.schedule.peak = 1e-3;
    run.train.schedule.kind = Schedule::Kind::kConstant;
    run.train.save_every = 5;
  }
  std::vector<json> linearize(const std::function<void(const json&)>& done = [](const json&) {}) {
    return run_stages(run, {true, run.out / "stages", run.out}, done);
  }
  std::vector<json> control() {
    return run_stages(run, {false, run.out / "control" / "stages", run.out / "control"},
                      [](const json&) {});
  }
  std::string bytes(const std::string& name) const { return read_file(folder.path / name); }
};

double total(const json& sums) {
  const auto values = sums.get<std::vector<double>>();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::vector<double> window_losses(ThreadPool& pool, const std::string& model,
                                  const std::string& allocation, std::span<const Batch> batches) {
  const Checkpoint checkpoint = read_checkpoint(model);
  const Allocation loaded = load_allocation_for(allocation, model, checkpoint);
  const Model packed = load_model(pool, read_checkpoint(model), Precision::kF32, 32);
  const std::vector<MlpPath> paths = pack_allocation(pool, packed, loaded);
  Progress progress("", 1, true);
  std::vector<double> sums;
  for (const auto& losses : batch_losses(pool, packed, batches, paths, progress)) {
    LossSum sum;
    sum.add(losses, std::vector<size_t>{0, losses.size()});
    sums.push_back(sum.sum);
  }
  return sums;
}

TEST(LinearizeTexts, NothingIsInTwoOfThem) {
  std::vector<int32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  const LinearizeSizes sizes{.fit = 90,
                             .calibration = 33,
                             .test = 100,
                             .eval_window = 32,
                             .train_window = 10,
                             .train_windows = 4};
  for (const std::optional<int32_t> bos :
       {std::optional<int32_t>(), std::optional<int32_t>(7000)}) {
    const LinearizeTexts texts =
        make_linearize_texts({"text", ids}, std::nullopt, std::nullopt, bos, sizes);
    std::vector<int32_t> seen;
    const auto add = [&](const Batch& batch) {
      seen.insert(seen.end(), batch.ids.begin() + (bos ? 1 : 0), batch.ids.end());
    };
    std::ranges::for_each(texts.fit, add);
    std::ranges::for_each(texts.calibration, add);
    for (size_t w = 0; w < texts.train.count(); ++w) add(texts.train.batch(w));
    std::ranges::for_each(texts.held_out.at(0).windows, add);
    EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()).size(), seen.size());
    EXPECT_GT(seen.size(), 940u);  // and little is lost
    EXPECT_EQ(texts.fit.size(), 3u);
    EXPECT_EQ(texts.calibration.size(), 2u);
    EXPECT_EQ(texts.held_out.at(0).windows.size(), 4u);
    // Test windows are whole windows of the text, so that `ppl --windows` finds them.
    const json range = texts.description.at("test").at("windows");
    const Windows all(ids, 32, bos, "text");
    EXPECT_EQ(all.batch(range.at(0)).ids, texts.held_out[0].windows[0].ids);
    EXPECT_EQ(range.at(1), all.count());
  }
  ids.resize(300);
  const std::string message = error_of([&] {
    make_linearize_texts({"a.txt", ids}, std::nullopt, std::nullopt, std::nullopt, sizes);
  });
  EXPECT_NE(message.find("a.txt: too short: expected at least 352 tokens"), std::string::npos)
      << message;
  const LinearizeTexts own =
      make_linearize_texts({"a.txt", ids}, TokenizedText{"b.txt", ids}, std::nullopt, {}, sizes);
  EXPECT_EQ(own.held_out.at(0).windows.size(), 4u);
  EXPECT_EQ(own.train.count(), (300u - 5 * 32) / 10);
}

TEST(Linearize, OrderFromTheCentre) {
  EXPECT_EQ(from_center({10, 11, 12, 13, 14}), (std::vector<size_t>{12, 11, 13, 10, 14}));
  EXPECT_EQ(from_center({13, 12, 11, 10}), (std::vector<size_t>{12, 11, 13, 10}));
  EXPECT_EQ(from_center({4}), (std::vector<size_t>{4}));
  EXPECT_TRUE(from_center({}).empty());
}

// Against moments of the two streams put together by hand.
TEST(Linearize, FitsOnTheModelAsItIs) {
  Trial trial("neox_base");
  const Model model =
      load_model(trial.pool, read_checkpoint(trial.checkpoint.path), Precision::kF32, 32);
  const size_t d = model.config.d_model;
  Progress progress("", 1, true);
  const std::vector<size_t> first{0};
  const auto bottom =
      fit_surrogates(trial.pool, model, {}, first, trial.texts.fit, 0.01, go_on, progress);
  std::vector<MlpPath> paths(model.config.layers);
  paths[0].options.push_back(
      {std::make_shared<CheapPath>(affine_path(bottom.at(0).affine, Precision::kF32)), {}});
  const std::vector<size_t> second{1};
  const auto found =
      fit_surrogates(trial.pool, model, paths, second, trial.texts.fit, 0.01, go_on, progress);
  Moments moments(d, d);
  Workspace workspace(model, 32);
  for (const Batch& batch : trial.texts.fit) {
    Matrix<float> residual(batch.rows(), d), x(batch.rows(), d), f(batch.rows(), d);
    embed(model, batch, residual.view());
    for (size_t l = 0; l < 2; ++l) {
      const Operand in =
          attention_step(trial.pool, model, l, batch.offsets, residual.view(), workspace);
      to_float32(in, x.view());
      if (l == 0) {
        apply_cheap(trial.pool, *paths[0].options[0].path, in, true, residual.view(),
                    workspace.mlp);
      } else {
        apply_mlp(trial.pool, model.layers[l].mlp, in, false, f.view(), workspace.mlp);
      }
    }
    moments.add(trial.pool, x.view(), f.view());
  }
  const Affine want = ridge(trial.pool, moments, 0.01);
  EXPECT_TRUE(std::ranges::equal(want.weight.span(), found.at(0).affine.weight.span()));
  EXPECT_EQ(want.bias, found.at(0).affine.bias);
  EXPECT_EQ(r2(trial.pool, moments, want), found.at(0).r2);
}

class LinearizeFamilies : public testing::TestWithParam<const char*> {};

TEST_P(LinearizeFamilies, FiguresAreThoseOfTheFiles) {
  Trial trial(GetParam());
  const json original = measure_original(trial.run);
  const std::vector<json> stages = trial.linearize();
  ASSERT_EQ(stages.size(), 3u);
  const Allocation allocation = load_allocation(trial.folder.path / kAllocationName);
  EXPECT_EQ(allocation.layers.at(0).size(), 1u);
  EXPECT_EQ(allocation.layers.at(1).size(), 1u);
  EXPECT_EQ(stages[0]["r2_fit"].size(), 1u);
  EXPECT_FALSE(stages[2].contains("replaced"));
  for (size_t text = 0; text < 2; ++text) {
    const HeldOutText& held_out = trial.texts.held_out[text];
    EXPECT_EQ(stages[2]["tuned"]["loss"][held_out.name].get<std::vector<double>>(),
              window_losses(trial.pool, trial.folder.path.string(),
                            (trial.folder.path / kAllocationName).string(), held_out.windows));
  }
  const auto shares = stages[2]["tuned"]["linear"]["test"].get<std::vector<double>>();
  for (size_t l = 0; l < shares.size(); ++l) EXPECT_EQ(shares[l], l < 2 ? 1.0 : 0.0);
  // Training does something, and on text like the test text it helps.
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_LT(total(stages[k]["tuned"]["loss"]["test"]),
              total(stages[k]["replaced"]["loss"]["test"]));
  }
  EXPECT_NE(original["loss"]["test"], stages[0]["replaced"]["loss"]["test"]);
  // Only the last stage's model stays.
  EXPECT_FALSE(fs::exists(trial.folder.path / "stages/000/model"));
  EXPECT_FALSE(fs::exists(trial.folder.path / "stages/001/state.safetensors"));
  EXPECT_TRUE(fs::exists(trial.folder.path / "stages/001/log.jsonl"));
}
INSTANTIATE_TEST_SUITE_P(Models, LinearizeFamilies,
                         testing::Values("gpt2_base", "llama_gqa", "neox_base"));

TEST(Linearize, SurrogatesAndReplacedMlpsAreFrozen) {
  Trial trial("gpt2_base");
  trial.run.keep_stages = true;
  trial.linearize();
  const Allocation first =
      load_allocation(trial.folder.path / "stages/000/model" / kAllocationName);
  const Allocation last = load_allocation(trial.folder.path / kAllocationName);
  EXPECT_TRUE(std::ranges::equal(first.layers.at(1).at(0).path.affine.weight.span(),
                                 last.layers.at(1).at(0).path.affine.weight.span()));
  const auto mlp = [&](const fs::path& model, size_t layer) {
    TrainModel read = load_train_model(trial.pool, read_checkpoint(model.string()), 16);
    const std::span<const float> up = read.layers[layer].mlp.full->up.weight.value.span();
    return std::vector<float>(up.begin(), up.end());
  };
  EXPECT_EQ(mlp(trial.folder.path, 1), mlp(trial.checkpoint.path, 1));
  // Layer 0's trained in the first stage, and no more.
  EXPECT_NE(mlp(trial.folder.path, 0), mlp(trial.checkpoint.path, 0));
  EXPECT_EQ(mlp(trial.folder.path, 0), mlp(trial.folder.path / "stages/000/model", 0));
}

// Linearising nothing is the control, to the bit.
TEST(Linearize, ControlDiffersByTheReplacementAlone) {
  Trial trial("llama_gqa");
  for (LinearizeStage& stage : trial.run.stages) stage.layers.clear();
  const std::vector<json> nothing = trial.linearize();
  const std::vector<json> control = trial.control();
  EXPECT_EQ(nothing, control);
  EXPECT_EQ(trial.bytes("model.safetensors"), trial.bytes("control/model.safetensors"));
  Trial other("llama_gqa");
  EXPECT_EQ(other.control().back()["tuned"], control.back()["tuned"]);
  other.linearize();
  EXPECT_NE(other.bytes("model.safetensors"), other.bytes("control/model.safetensors"));
}

TEST(Linearize, ThreadsChangeNothing) {
  Trial one("gpt2_base", 1), three("gpt2_base", 3);
  EXPECT_EQ(one.linearize(), three.linearize());
  EXPECT_EQ(one.bytes("model.safetensors"), three.bytes("model.safetensors"));
}

TEST(Linearize, GoesOnWhereItStopped) {
  Trial whole("gpt2_base");
  const std::vector<json> want = whole.linearize();
  for (size_t cut = 0; cut < 3; ++cut) {
    Trial part("gpt2_base");
    // Interrupted in the stage after `cut`.
    size_t seen = 0;
    const auto interrupt = [&](const json&) { part.stop = ++seen > cut; };
    if (cut < 2) {
      EXPECT_THROW(part.linearize(interrupt), Interrupted);
    } else {
      part.linearize();
    }
    part.stop = false;
    EXPECT_EQ(part.linearize(), want) << cut;
    EXPECT_EQ(part.bytes("model.safetensors"), whole.bytes("model.safetensors")) << cut;
  }
}

TEST(Linearize, CheapestFirst) {
  Trial trial("gpt2_base");
  const std::vector<size_t> layers{0, 1};
  const json order = cheapest_order(trial.run, layers);
  ASSERT_EQ(order.size(), 2u);
  EXPECT_LT(order[0]["mean_loss"], order[1]["mean_loss"]);
  EXPECT_EQ(cheapest_order(trial.run, layers), order);  // kept
}

TEST(Linearize, Distils) {
  Trial trial("gpt2_base");
  Model teacher =
      load_model(trial.pool, read_checkpoint(trial.checkpoint.path), Precision::kF32, 16);
  Workspace workspace(teacher, 32);
  trial.run.train.objective.kind = Objective::Kind::kDistill;
  trial.run.train.objective.teacher.model = &teacher;
  trial.run.train.objective.teacher.workspace = &workspace;
  // A control that follows itself has nothing to learn.
  const json original = measure_original(trial.run);
  const std::vector<json> control = trial.control();
  EXPECT_NEAR(total(control.back()["tuned"]["loss"]["test"]), total(original["loss"]["test"]),
              0.02 * total(original["loss"]["test"]));
  const std::vector<json> stages = trial.linearize();
  EXPECT_EQ(stages.size(), 3u);
}

GateTraining small_gates(const Trial& trial) {
  GateTraining gates;
  gates.units = 4;
  gates.bias = 0;
  gates.penalty = 0.01;
  gates.train = trial.run.train;
  gates.train.steps = gates.train.schedule.steps = 40;
  gates.train.schedule.peak = 0.03;
  gates.train.optimizer.weight_decay = 0;
  return gates;
}

TEST(Linearize, GatesTakeTheFullMlpWherePIsAboveOneHalf) {
  Trial trial("gpt2_base");
  measure_original(trial.run);
  trial.run.stages = {{{0, 1}, 10}};
  const std::vector<json> stages = trial.linearize();
  const std::string model = trial.bytes("model.safetensors");
  const GateTraining gates = small_gates(trial);
  const json soft = train_gates(trial.run, gates, Route::kSoft);
  const json hard = train_gates(trial.run, gates, Route::kHard);
  EXPECT_EQ(model, trial.bytes("model.safetensors"));  // all else is frozen
  for (const char* name : {"soft", "hard"}) {
    const json& found = std::string(name) == "soft" ? soft : hard;
    const std::string file =
        (trial.folder.path / fmt::format("allocation-{}.safetensors", name)).string();
    const std::vector<Batch>& windows = trial.texts.held_out[0].windows;
    EXPECT_EQ(found["hard"]["loss"]["test"].get<std::vector<double>>(),
              window_losses(trial.pool, trial.folder.path.string(), file, windows));
    // The training pass computes p itself.
    const Checkpoint checkpoint = read_checkpoint(trial.folder.path.string());
    TrainModel trained = load_train_model(trial.pool, checkpoint, 32);
    set_places(trained, load_allocation(file));
    TrainWorkspace workspace;
    std::vector<double> full(trained.layers.size());
    for (const Batch& batch : windows) {
      const PassResult pass = evaluate(trial.pool, trained, batch, {}, workspace);
      for (size_t l = 0; l < full.size(); ++l) {
        full[l] += pass.gates[l].full / static_cast<double>(windows.size());
      }
    }
    const auto linear = found["hard"]["linear"]["test"].get<std::vector<double>>();
    for (size_t l = 0; l < 2; ++l) EXPECT_NEAR(1 - linear[l], full[l], 1e-12) << name << " " << l;
  }
  // Somewhere a gate decides.
  const auto linear = hard["hard"]["linear"]["test"].get<std::vector<double>>();
  EXPECT_TRUE((linear[0] > 0.02 && linear[0] < 0.98) || (linear[1] > 0.02 && linear[1] < 0.98));
  EXPECT_EQ(train_gates(trial.run, gates, Route::kHard), hard);  // kept
  EXPECT_TRUE(soft["soft"]["loss"].contains("second"));
}

TEST(Linearize, ResultHoldsPairedIntervals) {
  Trial trial("gpt2_base");
  LinearizeFigures figures;
  figures.original = measure_original(trial.run);
  figures.stages = trial.linearize();
  figures.control = trial.control();
  LinearizeStatistics statistics;
  statistics.draws = 200;
  const json result = linearize_result({{"schema", 1}}, trial.run, figures, 0, statistics);
  ASSERT_EQ(result["models"].size(), 3u);
  const json& linearised = result["models"][1];
  EXPECT_EQ(linearised["name"], "linearised");
  for (const char* text : {"test", "second"}) {
    const json& found = linearised[text];
    const double original = result["models"][0][text]["ppl"];
    const double control = result["models"][2][text]["ppl"];
    EXPECT_NEAR(found["delta_ppl_pct"].get<double>(),
                100 * (found["ppl"].get<double>() / original - 1), 1e-6);
    EXPECT_NEAR(found["against_control"]["delta_ppl_pct"].get<double>(),
                100 * (found["ppl"].get<double>() / control - 1), 1e-6);
    EXPECT_LE(found["ci_lo"], found["delta_ppl_pct"]);
    EXPECT_GE(found["ci_hi"], found["delta_ppl_pct"]);
    EXPECT_EQ(found["pct_linear"], 100.0);
  }
  EXPECT_EQ(result["stages"].size(), 3u);
  EXPECT_EQ(result["stages"][1]["before"]["ppl"], result["stages"][0]["tuned"]["ppl"]);
  EXPECT_TRUE(result["stages"][2].contains("control"));
  // Both MLPs, of 4 d neurons, are d x d matrices.
  EXPECT_NEAR(linearised["test"]["mlp_flops_pct"].get<double>(), 100.0 / 8, 1e-9);
}

TEST(Allocations, BecomePlacesAndBack) {
  Trial trial("llama_gqa");
  trial.run.stages = {{{0, 1}, 0}};
  trial.linearize();
  const fs::path file = trial.folder.path / kAllocationName;
  Allocation allocation = load_allocation(file);
  const size_t d = allocation.model.d_model;
  // Neurons with the model's own weights, a constant, an affine gate with a threshold.
  PlainOption& option = allocation.layers[1][0];
  option.path.kind = "folded";
  option.path.neurons.kept = {1, 4, 5};
  option.path.constant.assign(d, 0.25f);
  Gate gate{.name = "harm", .weight = std::vector<float>(d, 0.5f), .bias = 0.25f};
  gate.threshold = 0.125f;
  option.gate = gate;
  const fs::path changed = trial.folder.path / "changed.safetensors";
  save_allocation(changed, allocation, false);
  const std::string model = trial.folder.path.string();
  TrainModel trained = load_train_model(trial.pool, read_checkpoint(model), 32);
  set_places(trained, allocation);
  TrainWorkspace workspace;
  const std::vector<Batch>& windows = trial.texts.held_out[0].windows;
  const std::vector<double> want = window_losses(trial.pool, model, changed.string(), windows);
  for (size_t w = 0; w < windows.size(); ++w) {
    const double found = evaluate(trial.pool, trained, windows[w], {}, workspace).loss_sum;
    EXPECT_NEAR(found, want[w], 1e-3 * want[w]);
  }
  read_places(trained, "", allocation);
  const fs::path again = trial.folder.path / "again.safetensors";
  save_allocation(again, allocation, false);
  const std::vector<double> back = window_losses(trial.pool, model, again.string(), windows);
  for (size_t w = 0; w < windows.size(); ++w) EXPECT_NEAR(back[w], want[w], 1e-3 * want[w]);
  EXPECT_EQ(allocation.layers[1][0].gate->name, "harm");

  PlainOption second;
  second.path.kind = "skip";
  allocation.layers[1].push_back(std::move(second));
  EXPECT_NE(error_of([&] { set_places(trained, allocation); }).find("layer 1: 2 options"),
            std::string::npos);
}

}  // namespace
}  // namespace halflin
