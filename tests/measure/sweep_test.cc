// The sweep against the same figures computed the slow way, through the forward pass's seam.
#include "halflin/measure/sweep.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halflin/base/random.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/perplexity.h"
#include "halflin/measure/sweep_result.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

constexpr size_t kWindow = 24;

Windows random_text(size_t vocab, size_t windows) {
  Random random(7, "text");
  std::vector<int32_t> ids(windows * kWindow);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(vocab));
  return Windows(std::move(ids), kWindow, std::nullopt);
}

class SweepTest : public testing::TestWithParam<const char*> {
 protected:
  Model model_ = [] {
    ThreadPool pool(1);
    return load_model(pool, read_checkpoint(std::string(HALFLIN_FIXTURES "/models/") + GetParam()),
                      Precision::kF32, kWindow);
  }();
  Splits splits_ =
      make_window_splits(random_text(model_.config.vocab, 66), {.fit_tokens = 12 * kWindow,
                                                                .train_tokens = 20 * kWindow,
                                                                .calibration_tokens = 10 * kWindow,
                                                                .eval_tokens = 18 * kWindow,
                                                                .harm_tokens = 6 * kWindow});
  TemporaryFolder folder_;
  size_t runs_ = 0;
  SweepOptions options_ = [this] {
    SweepOptions options;
    for (size_t l = 0; l < model_.config.layers; ++l) options.layers.push_back(l);
    options.gates = {"linear", "b1", "harm"};
    options.rates = {0.25, 0.75};
    options.fold = {0, 0.5, 1};
    options.controls = true;
    options.draws = 500;
    return options;
  }();

  struct Run {
    std::vector<LayerResult> layers;
    std::vector<std::string> json;
    std::vector<double> base;
  };
  Run run(
      int threads, const std::function<bool(size_t)>& finished = [](size_t) { return false; }) {
    ThreadPool pool(threads);
    Run run;
    const SweepBaseline* baseline = nullptr;
    const std::atomic<bool> stop{false};
    std::vector<size_t> unfinished;
    for (const size_t layer : options_.layers) {
      if (!finished(layer)) unfinished.push_back(layer);
    }
    const SampledGradients gradients(folder_.path / std::to_string(runs_++), splits_.harm,
                                     model_.config.d_model);
    prepare_gradients(pool, read_checkpoint(model_.path), kWindow, Precision::kF32, unfinished,
                      options_.seed, gradients, stop, /*quiet=*/true);
    sweep(
        pool, model_, splits_, options_, finished,
        [&](const SweepBaseline& ready) {
          baseline = &ready;
          run.base = ready.loss;
        },
        [&](const LayerResult& layer) {
          run.json.push_back(layer_json(layer, *baseline, options_).dump());
          run.layers.push_back(layer);
        },
        stop, /*quiet=*/true, &gradients);
    return run;
  }

  // Sums of losses of each test window with the given path in layer `layer`.
  std::vector<double> window_losses(size_t layer, const MlpPath& path) {
    ThreadPool pool(1);
    std::vector<Batch> batches;
    for (const Sample& sample : splits_.test) batches.push_back(sample.batch);
    std::vector<MlpPath> paths(model_.config.layers);
    paths[layer] = path;
    Progress progress("", 1, true);
    std::vector<double> sums;
    for (const auto& losses : batch_losses(pool, model_, batches, paths, progress)) {
      double sum = 0;
      for (const float loss : losses) sum += static_cast<double>(loss);
      sums.push_back(sum);
    }
    return sums;
  }

  // Moments of (x, f(x)) of a layer over the fit split, one token at a time.
  Moments slow_moments(size_t layer) {
    ThreadPool pool(1);
    Moments moments(model_.config.d_model, model_.config.d_model);
    Workspace workspace(model_, kWindow);
    Matrix<float> residual(kWindow, model_.config.d_model);
    Matrix<float> f(kWindow, model_.config.d_model);
    for (const Sample& sample : splits_.fit) {
      embed(model_, sample.batch, residual.view());
      for (size_t l = 0; l <= layer; ++l) {
        const MutableOperand x =
            attention_step(pool, model_, l, sample.batch.offsets, residual.view(), workspace);
        apply_mlp(pool, model_.layers[l].mlp, x, false, f.view(), workspace.mlp);
        for (size_t i = 0; i < f.size(); ++i) residual.data()[i] += f.data()[i];
        if (l == layer)
          moments.add(pool, MatView<const float>(x.f32_row(0), x.rows, x.cols), f.view());
      }
    }
    return moments;
  }

  static void expect_close(const std::vector<double>& want, const std::vector<double>& found) {
    ASSERT_EQ(want.size(), found.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(want[i], found[i], 2e-4) << "window " << i;
  }
};

TEST_P(SweepTest, SurrogateLossesEqualTheForwardPassWithThatPath) {
  const Run found = run(2);
  ASSERT_EQ(found.layers.size(), model_.config.layers);
  for (const LayerResult& layer : found.layers) {
    ThreadPool pool(1);
    const Affine affine = ridge(pool, slow_moments(layer.layer), options_.ridge);
    MlpPath path;
    path.options.push_back({std::make_shared<CheapPath>(affine_path(affine, Precision::kF32)), {}});
    expect_close(window_losses(layer.layer, path), layer.all_linear.loss);
    // A gate through the seam: the same surrogate, chosen token by token.
    const GateResult& harm = layer.gates.back();
    EXPECT_EQ(harm.name, "harm");
    for (const double linear : harm.own.linear) EXPECT_LE(linear, static_cast<double>(kWindow));
  }
}

TEST_P(SweepTest, HarmIsPredictedAndMeasured) {
  const Run found = run(2);
  for (size_t l = 0; l < found.layers.size(); ++l) {
    const LayerResult& layer = found.layers[l];
    ASSERT_TRUE(layer.harm);
    ASSERT_EQ(layer.harm->predictions, std::vector<double>(6, kWindow - 1));
    EXPECT_EQ(layer.harm->sinks, 0u);
    EXPECT_EQ(layer.all_linear_without_sinks, layer.all_linear.loss);  // there are none
    double harm = 0, cost = 0;
    for (const double h : layer.harm->harm) harm += h;
    for (size_t w = 0; w < found.base.size(); ++w) cost += layer.all_linear.loss[w] - found.base[w];
    const nlohmann::json json = nlohmann::json::parse(found.json[l])["harm"];
    EXPECT_NEAR(json["predicted"], harm / (6 * (kWindow - 1)), 1e-9);
    EXPECT_NEAR(json["measured"], cost / (18 * (kWindow - 1)), 1e-9);
    EXPECT_NEAR(json["scale"], layer.harm->scale(), 1e-12);
    EXPECT_GT(json["predicted"], 0);
  }
}

TEST_P(SweepTest, FoldingEndsAreTheSurrogateAndTheMlp) {
  const Run found = run(1);
  for (const LayerResult& layer : found.layers) {
    expect_close(layer.all_linear.loss, layer.folds[0].loss);  // nothing kept
    expect_close(found.base, layer.folds[2].loss);             // everything kept
  }
}

TEST_P(SweepTest, SkipAndMeanEqualTheForwardPass) {
  const Run found = run(1);
  for (const LayerResult& layer : found.layers) {
    MlpPath path;
    path.options.push_back({std::make_shared<CheapPath>(), {}});  // nothing at all
    expect_close(window_losses(layer.layer, path), layer.controls[1].loss);
    const Moments moments = slow_moments(layer.layer);
    path.options[0].path = std::make_shared<CheapPath>(mean_path(moments.mean_y));
    expect_close(window_losses(layer.layer, path), layer.controls[0].loss);
  }
}

TEST_P(SweepTest, RatesAreNearWhatWasAsked) {
  const Run found = run(1);
  const double tokens = static_cast<double>(splits_.test.size() * kWindow);
  for (const LayerResult& layer : found.layers) {
    for (const VariantResult& variant : layer.routing_controls) {
      double linear = 0;
      for (const double n : variant.linear) linear += n;
      EXPECT_NEAR(linear / tokens, variant.rate, 0.12) << variant.name;
    }
  }
}

TEST_P(SweepTest, ResultsAreBitIdenticalForAnyThreadsAndAfterResuming) {
  const Run one = run(1);
  const Run three = run(3);
  EXPECT_EQ(one.json, three.json);
  const size_t last = model_.config.layers - 1;
  const Run resumed = run(2, [&](size_t layer) { return layer != last; });
  ASSERT_EQ(resumed.json.size(), 1u);
  EXPECT_EQ(resumed.json[0], one.json[last]);
}

TEST_P(SweepTest, StopEndsTheWalk) {
  ThreadPool pool(2);
  const std::atomic<bool> stop{true};
  EXPECT_THROW(sweep(
                   pool, model_, splits_, options_, [](size_t) { return false; },
                   [](const SweepBaseline&) {}, [](const LayerResult&) {}, stop, true),
               Interrupted);
}

INSTANTIATE_TEST_SUITE_P(Models, SweepTest,
                         testing::Values("gpt2_base", "neox_base", "llama_gqa", "mistral_window"),
                         [](const auto& info) { return std::string(info.param); });

nlohmann::json layer_of(double delta, double lo, double hi, double p) {
  return {{"all_linear",
           {{"delta_ppl_pct", delta},
            {"ci_lo", lo},
            {"ci_hi", hi},
            {"p", p},
            {"too_few_windows", false}}},
          {"gates", nlohmann::json::array()}};
}

TEST(SweepVerdicts, NeedTheIntervalAndHolm) {
  const auto verdicts = [](const std::vector<nlohmann::json>& layers) {
    std::vector<std::string> out;
    const nlohmann::json result =
        assemble_sweep(nlohmann::json::object(), nlohmann::json::object(), layers, layers.size());
    for (const auto& layer : result["layers"]) out.push_back(layer["all_linear"]["verdict"]);
    return out;
  };
  EXPECT_EQ(verdicts({layer_of(-0.5, -0.8, -0.2, 0.001), layer_of(0.3, -0.2, 0.8, 0.2),
                      layer_of(5, 4, 6, 0.0002), layer_of(0.9, -0.5, 2.5, 0.3)}),
            (std::vector<std::string>{"better", "free", "costs", "undecided"}));
  // p = 0.02 is significant alone, not among three layers.
  EXPECT_EQ(verdicts({layer_of(3, 0.5, 5, 0.02)})[0], "costs");
  EXPECT_EQ(
      verdicts({layer_of(3, 0.5, 5, 0.02), layer_of(3, -1, 5, 0.6), layer_of(3, -1, 5, 0.7)})[0],
      "undecided");
}

TEST(SweepStore, RefusesAnotherRun) {
  const TemporaryFolder folder;
  const nlohmann::json header = {{"model", "a"}, {"seed", 1}, {"threads", 2}};
  SweepStore(folder.path / "run", header);
  nlohmann::json other = header;
  other["threads"] = 8;  // changes no figure
  SweepStore(folder.path / "run", other);
  other["seed"] = 2;
  EXPECT_CONTAINS(error_of([&] { SweepStore(folder.path / "run", other); }),
                  "seed is 1 there and 2 here");
}

}  // namespace
}  // namespace halflin
