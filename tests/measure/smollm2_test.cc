// SmolLM2-135M on WikiText's test text, against figures that others computed: transformers'
// perplexities, a reference implementation's surrogates and foldings, and what the paper's official
// script printed. Skipped, in words, where the model or the text is not there.
#include "tests/smollm2.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "halflin/io/text.h"
#include "halflin/io/tokenizer.h"
#include "halflin/measure/perplexity.h"
#include "halflin/measure/sweep.h"
#include "halflin/measure/sweep_result.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = smollm2_missing(); !why.empty()) GTEST_SKIP() << why;
    const std::string path = HALFLIN_SHARED "/data/wikitext/wiki.test.raw";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no WikiText test text at " << path;
    text_ = read_text(path).bytes;
  }

  Model load(Precision precision) {
    return load_model(pool_, read_checkpoint(smollm2_path()), precision, 512);
  }
  Tokenizer tokenizer() {
    return Tokenizer::from_gguf(open_gguf(smollm2_path()).metadata, smollm2_path());
  }
  Windows windows() { return Windows(tokenizer().encode(text_), 512, std::nullopt); }

  double perplexity(const Model& model, const Windows& windows, size_t begin, size_t end) {
    std::vector<Batch> batches;
    for (size_t w = begin; w < end; ++w) batches.push_back(windows.batch(w));
    Progress progress("", 1, true);
    const auto losses = batch_losses(pool_, model, batches, {}, progress);
    LossSum sum;
    for (size_t b = 0; b < batches.size(); ++b) sum.add(losses[b], batches[b].offsets);
    return sum.perplexity();
  }

  // The layers of the result file.
  nlohmann::json run(const Splits& splits, const SweepOptions& options, double* baseline_ppl) {
    const std::atomic<bool> stop{false};
    const TemporaryFolder folder;
    const SampledGradients gradients(folder.path, splits.harm, 576);
    if (!splits.harm.empty()) {
      prepare_gradients(pool_, read_checkpoint(smollm2_path()), 512, Precision::kF32,
                        options.layers, options.seed, gradients, stop, /*quiet=*/true);
    }
    const Model model = load(Precision::kF32);
    const SweepBaseline* baseline = nullptr;
    nlohmann::json layers = nlohmann::json::array();
    sweep(
        pool_, model, splits, options, [](size_t) { return false; },
        [&](const SweepBaseline& ready) {
          baseline = &ready;
          *baseline_ppl = baseline_json(ready, options)["baseline_ppl"];
        },
        [&](const LayerResult& layer) { layers.push_back(layer_json(layer, *baseline, options)); },
        stop, /*quiet=*/true, &gradients);
    return layers;
  }

  ThreadPool pool_{available_threads()};
  std::string text_;
};

TEST_F(SmolLm2, PerplexityEqualsTransformers) {
  const Windows all = windows();
  const Model f32 = load(Precision::kF32);
  EXPECT_NEAR(perplexity(f32, all, 90, 106), 30.0308, 0.003);
  EXPECT_NEAR(perplexity(f32, all, 90, 122), 32.3981, 0.003);
  const Model bf16 = load(Precision::kBF16);
  EXPECT_NEAR(perplexity(bf16, all, 90, 106), 30.0308, 0.005 * 30.0308);
}

TEST_F(SmolLm2, SurrogatesAndFoldingEqualTheReference) {
  SplitSizes sizes;
  sizes.fit_windows = "0:30";
  sizes.eval_windows = "90:102";
  sizes.needs_gates = false;
  SweepOptions options;
  options.layers = {4, 8, 12};
  options.ridge = 1;
  options.fold = {0.25, 0.5};
  double baseline = 0;
  const nlohmann::json layers = run(make_window_splits(windows(), sizes), options, &baseline);
  EXPECT_NEAR(baseline, 30.3423, 0.003);
  const double all_linear[] = {5.73, 9.10, 5.81};
  const double fold_quarter[] = {2.36, 4.36, 3.13};
  const double fold_half[] = {0.87, 2.38, 1.97};
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(options.layers[i]);
    EXPECT_NEAR(layers[i]["all_linear"]["delta_ppl_pct"], all_linear[i], 0.05);
    EXPECT_NEAR(layers[i]["folds"][0]["delta_ppl_pct"], fold_quarter[i], 0.1);
    EXPECT_NEAR(layers[i]["folds"][1]["delta_ppl_pct"], fold_half[i], 0.1);
  }
}

// A prototype in PyTorch predicted 0.038 nats for layer 12 and measured 0.046, from 20,000 tokens
// to fit and other windows. Four windows leave a standard error of 8 % in the prediction (its
// relative deviation from window to window is 15 %), twelve one of 6 to 10 % in what is measured;
// the prediction itself is off by a factor of 0.7 to 1 in these layers (docs/method.md).
TEST_F(SmolLm2, PredictsTheHarmOfWholeLayers) {
  SplitSizes sizes;
  sizes.fit_windows = "0:40";
  sizes.eval_windows = "90:102";
  sizes.harm_windows = "102:106";
  sizes.needs_gates = false;
  SweepOptions options;
  options.layers = {12, 20, 29};
  double baseline = 0;
  const nlohmann::json layers = run(make_window_splits(windows(), sizes), options, &baseline);
  double last = 0;
  for (const nlohmann::json& layer : layers) {
    const double predicted = layer["harm"]["predicted"];
    const double measured = layer["harm"]["measured"];
    SCOPED_TRACE(fmt::format("layer {}: {} and {}", layer["layer"].dump(), predicted, measured));
    EXPECT_GT(predicted, 0.5 * measured);
    EXPECT_LT(predicted, 1.4 * measured);
    EXPECT_GT(predicted, last);  // as the measured ones are ordered
    last = predicted;
  }
  EXPECT_NEAR(layers[0]["harm"]["predicted"], 0.038, 0.010);
  EXPECT_NEAR(layers[0]["harm"]["measured"], 0.046, 0.014);
}

// Layer 11 writes attention sinks. Asked for every token, random routing takes all others exactly.
TEST_F(SmolLm2, RandomRoutingSparesSinks) {
  const SplitSizes sizes{
      .fit_tokens = 2048, .train_tokens = 1024, .calibration_tokens = 1024, .eval_tokens = 1024};
  SweepOptions options;
  options.layers = {11};
  options.gates = {"harm"};
  options.rates = {1};
  options.controls = true;
  double baseline = 0;
  const nlohmann::json layer = run(make_window_splits(windows(), sizes), options, &baseline)[0];
  const nlohmann::json& random = layer["routing_controls"][0];
  const double sinks = layer["sinks"];
  EXPECT_EQ(random["name"], "random");
  EXPECT_GE(sinks, 2);  // the first token of each window at least
  EXPECT_NEAR(random["pct_linear"], 100 * (1 - sinks / 1024), 1e-9);
  EXPECT_LT(random["delta_ppl_pct"], layer["all_linear"]["delta_ppl_pct"]);
}

TEST_F(SmolLm2, PaperProtocolEqualsTheOfficialScript) {
  SweepOptions options;
  options.layers = {15};
  options.gates = {"linear", "b1", "b3", "b6"};
  double baseline = 0;
  const nlohmann::json layers =
      run(make_paper_splits(tokenizer(), text_, 8192, {}), options, &baseline);
  EXPECT_NEAR(baseline, 45.03, 0.01);
  const nlohmann::json& layer = layers[0];
  EXPECT_NEAR(layer["all_linear"]["ppl"], 46.23, 0.01);
  EXPECT_NEAR(layer["all_linear"]["delta_ppl_pct"], 2.65, 0.05);
  const double delta_ppl[] = {1.17, 1.85, 0.81, 0.53};
  const double linear[] = {62.6, 77.4, 61.1, 51.8};
  for (size_t g = 0; g < 4; ++g) {
    SCOPED_TRACE(options.gates[g]);
    EXPECT_NEAR(layer["gates"][g]["delta_ppl_pct"], delta_ppl[g], 0.05);
    EXPECT_NEAR(layer["gates"][g]["pct_linear"], linear[g], 1.0);
  }
  const nlohmann::json& delta = layer["delta"]["train"];
  EXPECT_EQ(delta["tokens"], 25000);
  EXPECT_NEAR(delta["median"], 0.0178, 0.0001);
  EXPECT_NEAR(delta["mean"], 0.0482, 0.0001);
  EXPECT_NEAR(delta["sd"], 0.4236, 0.0005);
  EXPECT_NEAR(delta["pct_beneficial"], 42.4, 0.1);
}

}  // namespace
}  // namespace halflin
