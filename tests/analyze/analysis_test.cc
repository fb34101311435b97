// Analyses of tiny models with random weights, end to end.
#include "halflin/analyze/analysis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halflin/analyze/features.h"
#include "halflin/analyze/parts.h"
#include "halflin/analyze/summary.h"
#include "halflin/base/random.h"
#include "halflin/measure/sweep.h"
#include "halflin/measure/walk.h"

namespace halflin {
namespace {

const std::string kModels = HALFLIN_FIXTURES "/models/";
constexpr size_t kWindow = 16;

// Tokens that follow each other more often than chance, so that there is something to find.
std::vector<int32_t> make_ids(const Config& config, uint64_t seed, size_t count) {
  Random random(seed, "text");
  std::vector<int32_t> ids = {3};
  while (ids.size() < count) {
    const auto next =
        random.uniform() < 0.5 ? static_cast<uint64_t>(ids.back()) * 7 + 1 : random.below(40);
    ids.push_back(static_cast<int32_t>(next % std::min<size_t>(40, config.vocab)));
  }
  return ids;
}

struct Outcome {
  std::vector<AnalyzedLayer> layers;
  nlohmann::json result;
};

Outcome run(
    const std::string& name, int threads, const AnalysisTexts& texts,
    const std::function<bool(size_t)>& finished = [](size_t) { return false; }) {
  ThreadPool pool(threads);
  Checkpoint checkpoint = read_checkpoint(kModels + name + "/model.gguf");
  const Tokenizer tokenizer = Tokenizer::from_gguf(checkpoint.file.metadata, name);
  const Model model = load_model(pool, std::move(checkpoint), Precision::kF32, kWindow);
  AnalysisOptions options;
  for (size_t l = 0; l < model.config.layers; ++l) options.layers.push_back(l);
  options.draws = 200;
  Outcome out;
  std::vector<nlohmann::json> figures;
  analyze(
      pool, model, tokenizer, texts, options, finished,
      [&](const AnalyzedLayer& layer) {
        out.layers.push_back(layer);
        figures.push_back(layer.analysis.figures);
      },
      false, true);
  out.result = assemble_analysis({{"kind", "analysis"}}, figures, options.layers.size());
  return out;
}

AnalysisTexts texts_for(const std::string& name, size_t tokens = 960) {
  const Config config = read_checkpoint(kModels + name + "/model.gguf").architecture.config;
  return make_analysis_texts(make_ids(config, 1, 2000), make_ids(config, 2, 2000), kWindow,
                             std::nullopt, 640, tokens);
}

TEST(Analysis, IsTheSameForAnyThreadsAndGoesOnWhereItStopped) {
  for (const char* name : {"llama_gguf", "gpt2_gguf", "neox_gguf"}) {
    const AnalysisTexts texts = texts_for(name);
    const Outcome one = run(name, 1, texts);
    const Outcome two = run(name, 2, texts);
    EXPECT_EQ(one.result.dump(), two.result.dump()) << name;
    ASSERT_GE(one.layers.size(), 2u);
    EXPECT_EQ(one.layers[1].delta_b, two.layers[1].delta_b);
    const Outcome rest = run(name, 2, texts, [](size_t layer) { return layer == 0; });
    EXPECT_EQ(rest.layers[0].analysis.figures.dump(), one.layers[1].analysis.figures.dump());
    EXPECT_FALSE(rest.result.at("complete"));
    EXPECT_TRUE(one.result.at("complete"));
  }
}

TEST(Analysis, DeltasEqualASweeps) {
  const std::string name = "llama_gguf";
  const AnalysisTexts texts = texts_for(name);
  const Outcome analysis = run(name, 2, texts);

  ThreadPool pool(2);
  const Model model =
      load_model(pool, read_checkpoint(kModels + name + "/model.gguf"), Precision::kF32, kWindow);
  Splits splits;
  splits.fit = texts.fit;
  splits.test = texts.a.samples;
  SweepOptions options;
  options.layers = {0, 1};
  options.draws = 100;
  std::vector<LayerResult> swept;
  sweep(
      pool, model, splits, options, [](size_t) { return false; }, [](const SweepBaseline&) {},
      [&](const LayerResult& layer) { swept.push_back(layer); }, false, true);
  for (size_t l = 0; l < 2; ++l) {
    size_t row = 0;
    for (const float delta : swept[l].delta) {
      if (std::isnan(delta)) continue;  // the last token of a window
      ASSERT_EQ(delta, analysis.layers[l].delta_a[row++]);
    }
    EXPECT_EQ(row, texts.a.rows());
  }
}

TEST(Analysis, HasEveryFigureWithItsInterval) {
  const std::string name = "gpt2_gguf";
  const Outcome analysis = run(name, 2, texts_for(name));
  const nlohmann::json& layer = analysis.layers[1].analysis.figures;
  for (const char* gate : {"whole", "token", "context", "raw_token", "raw_context",
                           "token_type_means", "position", "noise"}) {
    const nlohmann::json& auc = layer.at("gates").at("auc").at(gate);
    EXPECT_LE(auc.at("ci_lo"), auc.at("value")) << gate;
    EXPECT_GE(auc.at("ci_hi"), auc.at("value")) << gate;
  }
  for (const char* key : {"input_token", "target_token", "context", "both"}) {
    EXPECT_LE(layer.at("explained").at(key).at("value"), 1) << key;
  }
  EXPECT_EQ(layer.at("surface").at("delta_correlation").size(), kSurfaceFeatures);
  EXPECT_EQ(layer.at("gate_direction").at("most_linear").size(), 15u);
  EXPECT_EQ(layer.at("clusters").at("list").size(), layer.at("clusters").at("clusters"));
  for (const char* key : {"texts", "halves", "positions"}) {
    const double cosine = layer.at("stability").at(key).at("cosine");
    EXPECT_LE(std::abs(cosine), 1) << key;
  }
  // Nothing comes of noise but chance; a generous interval of four standard errors.
  const double noise = layer.at("gates").at("auc").at("noise").at("value");
  EXPECT_NEAR(noise, 0.5, 4 * 0.029);  // 450 tokens of each class
  const std::string text = analysis_summary(analysis.result);
  EXPECT_NE(text.find("surface features"), std::string::npos);
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
}

TEST(Analysis, SaysWhereThereIsTooLittle) {
  const std::string name = "llama_gguf";
  const Outcome analysis = run(name, 1, texts_for(name, 64));  // four windows
  const nlohmann::json& layer = analysis.layers[0].analysis.figures;
  EXPECT_EQ(layer.at("gates").at("auc").at("whole").at("too_few"), 30);  // train tokens
  EXPECT_TRUE(layer.at("explained").at("input_token").contains("too_few"));
  EXPECT_TRUE(layer.at("no_fly").at("input").at("correlation").contains("too_few"));
  EXPECT_EQ(layer.at("clusters").at("too_few"), layer.at("clusters").at("clusters"));
  for (const nlohmann::json& s : analysis.result.at("statements")) {
    if (s.at("id") == "better_linear" || s.at("value").is_null()) {
      EXPECT_EQ(s.at("verdict"), "undecided") << s;
    }
  }
  EXPECT_NE(analysis_summary(analysis.result).find("too few"), std::string::npos);
}

TEST(Parts, SumToTheMlpsInput) {
  // LayerNorm with learned positions; RMSNorm; LayerNorm whose norm reads what attention has not
  // changed yet.
  for (const char* name : {"gpt2_base", "llama_gqa", "neox_base"}) {
    ThreadPool pool(2);
    const Model model = load_model(pool, read_checkpoint(kModels + name), Precision::kF32, kWindow);
    Random random(1, name);
    std::vector<Sample> samples(1);
    std::vector<int32_t> ids;
    for (size_t t = 0; t < kWindow; ++t) {
      ids.push_back(static_cast<int32_t>(random.below(model.config.vocab)));
    }
    samples[0].batch.add(ids);
    samples[0].use.assign(kWindow, 1);
    std::vector<Stream> streams = make_streams(model, samples);
    Matrix<float> embedding(kWindow, model.config.d_model);
    embed(model, samples[0].batch, embedding.view());
    std::vector<WalkWorker> workers;
    workers.reserve(2);
    for (int w = 0; w < pool.size(); ++w) workers.emplace_back(model, kWindow);
    Progress progress("", 1, true);
    const std::atomic<bool> stop = false;
    WalkContext walk{pool, model, workers, stop, progress};
    for (size_t layer = 0; layer < model.config.layers; ++layer) {
      each_batch(walk, streams, layer, [&](size_t, Stream&, WalkWorker&, const BatchView& view) {
        const Norm& norm = model.layers[layer].mlp_norm;
        const InputParts frozen = frozen_parts(norm, embedding.view(), view.norm_input);
        const InputParts raw = raw_parts(embedding.view(), view.x32);
        for (size_t t = 0; t < kWindow; ++t) {
          for (size_t i = 0; i < model.config.d_model; ++i) {
            const float bias = norm.bias.empty() ? 0.f : norm.bias[i];
            EXPECT_NEAR(frozen.token(t, i) + frozen.context(t, i) + bias, view.x32(t, i), 1e-5)
                << name << " layer " << layer;
            EXPECT_NEAR(raw.token(t, i) + raw.context(t, i), view.x32(t, i), 1e-6);
            EXPECT_EQ(raw.token(t, i), embedding(t, i));
          }
        }
      });
    }
  }
}

TEST(Parts, OfTheEmbeddingAloneAreAllToken) {
  // Where no layer has written yet, the context part is nothing and the token part all of x.
  Norm norm{NormKind::kLayerNorm, 1e-5f, {1, 2, 3, 4}, {0, 0, 0, 1}};
  Matrix<float> h(2, 4);
  for (size_t i = 0; i < 8; ++i) h.data()[i] = static_cast<float>(i * i);
  const InputParts parts = frozen_parts(norm, h.view(), h.view());
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(parts.context.data()[i], 0);
  const PartGeometry g = part_geometry(parts, parts.token.view());
  EXPECT_EQ(g.context_fraction, 0);
  EXPECT_NEAR(g.token_norm, g.x_norm, 1e-12);
}

TEST(TypeMeansTest, AreMeansByToken) {
  TypeMeans means(2);
  Matrix<float> x(3, 2);
  for (size_t i = 0; i < 6; ++i) x.data()[i] = static_cast<float>(i);  // (0, 1) (2, 3) (4, 5)
  const std::vector<int32_t> ids = {7, 8, 7};
  means.add(ids, x.view());
  const std::vector<int32_t> asked = {7, 8, 9, 9};
  const Matrix<float> rows = means.rows(asked);
  EXPECT_EQ(rows(0, 0), 2);
  EXPECT_EQ(rows(0, 1), 3);
  EXPECT_EQ(rows(1, 0), 2);
  EXPECT_EQ(rows(2, 1), 3);  // never added: the mean of all
  EXPECT_EQ(means.coverage(asked), 0.5);
}

}  // namespace
}  // namespace halflin
