// Predicted harm against what it predicts: the divergence of a model whose MLP outputs were
// changed, one token at a time and a whole layer at once.
#include "halflin/measure/harm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/measure/paths.h"
#include "halflin/train/checkpoint.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

constexpr size_t kTokens = 12;
constexpr size_t kCopies = 100;  // of the sequence in a sample: so many draws of its labels
constexpr size_t kSamples = 20;

class HarmTest : public testing::TestWithParam<const char*> {
 protected:
  HarmTest() {
    Random random(3, "text");
    for (int32_t& id : ids_) id = static_cast<int32_t>(random.below(model_.config.vocab));
    const Sample many = sample(kCopies);
    samples_.assign(kSamples, many);
    for (size_t l = 0; l < model_.config.layers; ++l) layers_.push_back(l);
  }

  Sample sample(size_t copies) const {
    Sample out;
    for (size_t i = 0; i < copies; ++i) out.batch.add(ids_);
    out.use.assign(out.batch.rows(), 1);
    return out;
  }

  SampledGradients gradients(std::span<const Sample> samples, const std::string& name,
                             int threads = 2) const {
    ThreadPool pool(threads);
    const SampledGradients out(folder_.path / name, samples, model_.config.d_model);
    prepare_gradients(pool, read_checkpoint(path_), kTokens, Precision::kF32, layers_, /*seed=*/1,
                      out, stop_, /*quiet=*/true);
    return out;
  }

  // Small changes of an MLP's outputs, independent from token to token.
  Matrix<float> changes(size_t layer, size_t draw) const {
    Random random(5, fmt::format("changes, layer {}, draw {}", layer, draw));
    Matrix<float> r(kTokens, model_.config.d_model);
    for (float& v : r.span()) v = static_cast<float>(0.003 * random.normal());
    return r;
  }

  // Log probabilities [kTokens, vocab] where the outputs of `layer` have `r` added.
  Matrix<double> predictions(size_t layer, MatView<const float> r) {
    const size_t vocab = model_.config.vocab;
    Batch batch;
    batch.add(ids_);
    Workspace workspace(model_, kTokens);
    Matrix<float> stream(kTokens, model_.config.d_model);
    Matrix<float> logits(kTokens, vocab);
    embed(model_, batch, stream.view());
    for (size_t l = 0; l < model_.config.layers; ++l) {
      const MutableOperand x =
          attention_step(pool_, model_, l, batch.offsets, stream.view(), workspace);
      apply_mlp(pool_, model_.layers[l].mlp, x, true, stream.view(), workspace.mlp);
      for (size_t i = 0; l == layer && i < stream.size(); ++i) stream.data()[i] += r.data[i];
    }
    final_logits(pool_, model_, stream.view(), workspace, logits.view());
    Matrix<double> out(kTokens, vocab);
    for (size_t t = 0; t < kTokens; ++t) {
      double sum = 0;
      for (const float logit : logits.view().row_span(t))
        sum += std::exp(static_cast<double>(logit));
      for (size_t v = 0; v < vocab; ++v) {
        out(t, v) = static_cast<double>(logits(t, v)) - std::log(sum);
      }
    }
    return out;
  }

  // KL divergence, nats, summed over all predictions of the sequence.
  double divergence(size_t layer, MatView<const float> r) {
    const Matrix<double> p = predictions(layer, Matrix<float>(kTokens, r.cols).view());
    const Matrix<double> q = predictions(layer, r);
    double sum = 0;
    for (size_t t = 0; t + 1 < kTokens; ++t) {
      for (size_t v = 0; v < p.cols(); ++v) sum += std::exp(p(t, v)) * (p(t, v) - q(t, v));
    }
    return sum;
  }

  // Harm of each token when its output alone changes by r, averaged over all draws.
  std::vector<double> predicted(const SampledGradients& from, size_t layer,
                                MatView<const float> r) const {
    std::vector<double> harm(kTokens);
    const size_t rows = from.samples()[0].batch.rows();
    Matrix<float> gradient(rows, r.cols), none(rows, r.cols), changed(rows, r.cols);
    for (size_t t = 0; t < rows; ++t) std::copy_n(r.row(t % kTokens), r.cols, changed.row(t));
    for (size_t s = 0; s < from.samples().size(); ++s) {
      from.read(layer, s, gradient.view());
      const std::vector<double> part = token_harm(gradient.view(), none.view(), changed.view());
      for (size_t t = 0; t < rows; ++t) {
        harm[t % kTokens] += part[t] / static_cast<double>(kCopies * kSamples);
      }
    }
    return harm;
  }

  std::string path_ = std::string(HALFLIN_FIXTURES "/models/") + GetParam();
  ThreadPool pool_{2};
  Model model_ = load_model(pool_, read_checkpoint(path_), Precision::kF32, kTokens);
  TemporaryFolder folder_;
  std::array<int32_t, kTokens> ids_{};
  std::vector<Sample> samples_;
  std::vector<size_t> layers_;
  std::atomic<bool> stop_{false};
};

// 2,000 draws of labels: a token's mean has a relative standard error of about sqrt(2 / 2000), 3 %.
TEST_P(HarmTest, OfATokenIsItsDivergence) {
  const SampledGradients sampled = gradients(samples_, "gradients");
  for (const size_t layer : layers_) {
    const Matrix<float> r = changes(layer, 0);
    const std::vector<double> want = predicted(sampled, layer, r.view());
    double all_want = 0, all_found = 0;
    for (size_t t = 0; t + 1 < kTokens; ++t) {
      Matrix<float> one(kTokens, r.cols());
      std::copy_n(r.row(t), r.cols(), one.row(t));
      const double found = divergence(layer, one.view());
      EXPECT_NEAR(want[t] / found, 1, 0.2) << "layer " << layer << ", token " << t;
      all_want += want[t];
      all_found += found;
    }
    EXPECT_NEAR(all_want / all_found, 1, 0.06) << "layer " << layer;
    EXPECT_EQ(want.back(), 0);  // the last token of a sequence predicts nothing
  }
}

// Tokens changed together: the sum, where their errors do not depend on each other.
TEST_P(HarmTest, OfALayerIsItsDivergence) {
  const SampledGradients sampled = gradients(samples_, "gradients");
  for (const size_t layer : layers_) {
    double want = 0, found = 0;
    for (size_t draw = 0; draw < 40; ++draw) {
      const Matrix<float> r = changes(layer, draw);
      const std::vector<double> harm = predicted(sampled, layer, r.view());
      want += std::accumulate(harm.begin(), harm.end(), 0.0);
      found += divergence(layer, r.view());
    }
    EXPECT_NEAR(want / found, 1, 0.2) << "layer " << layer;
  }
}

TEST_P(HarmTest, GradientsAreTheSameForAnyThreadsAndLayers) {
  const std::vector<Sample> samples = {sample(1), sample(3)};
  const SampledGradients one = gradients(samples, "one", 1);
  const SampledGradients three = gradients(samples, "three", 3);
  for (const size_t layer : layers_) {
    EXPECT_EQ(read_file(one.path(layer)), read_file(three.path(layer)));
  }
  const std::string whole = read_file(one.path(1));
  one.remove(1);
  EXPECT_TRUE(one.has(0));
  EXPECT_FALSE(one.has(1));
  const std::vector<size_t> last = {1};
  prepare_gradients(pool_, read_checkpoint(path_), kTokens, Precision::kF32, last, 1, one, stop_,
                    true);
  EXPECT_EQ(read_file(one.path(1)), whole);
  EXPECT_FALSE(one.has(0));  // it was not asked for, and so is no longer needed

  std::string damaged = whole;
  damaged[7] = static_cast<char>(damaged[7] ^ 1);
  write_file_atomically(one.path(1), damaged);
  EXPECT_FALSE(one.has(1));
  std::filesystem::resize_file(one.path(1), whole.size() / 2);
  EXPECT_FALSE(one.has(1));
  Matrix<float> rows(3 * kTokens, model_.config.d_model);
  EXPECT_CONTAINS(error_of([&] { one.read(1, 1, rows.view()); }), one.path(1).string());
  one.remove();
  EXPECT_FALSE(std::filesystem::exists(one.directory()));
}

TEST_P(HarmTest, StopLeavesNoGradients) {
  stop_ = true;
  EXPECT_THROW(gradients(samples_, "stopped"), Interrupted);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path / "stopped"));
}

TEST_P(HarmTest, OfALayerLeavesSinksOut) {
  const std::vector<Sample> samples = {sample(2), sample(1)};
  const SampledGradients sampled = gradients(samples, "gradients");
  Progress progress("", 1, true);
  std::vector<WalkWorker> workers;
  for (int w = 0; w < pool_.size(); ++w) workers.emplace_back(model_, 2 * kTokens);
  WalkContext context{pool_, model_, workers, stop_, progress};
  std::vector<Stream> streams = make_streams(model_, samples);
  std::vector<Stream> slow = make_streams(model_, samples);
  advance(context, streams, 0);
  advance(context, slow, 0);

  // Nothing in the MLP's place: r = -f.
  std::vector<double> norms, harm, energy;
  each_batch(context, slow, 1, [&](size_t b, Stream&, WalkWorker&, const BatchView& view) {
    if (b != 0) return;
    Matrix<float> gradient(2 * kTokens, view.full.cols), none(2 * kTokens, view.full.cols);
    sampled.read(1, 0, gradient.view());
    harm = token_harm(gradient.view(), view.full, none.view());
    for (size_t t = 0; t < view.full.rows; ++t) {
      energy.push_back(squared_norm(view.full.row_span(t)));
      norms.push_back(std::sqrt(energy.back()));
    }
  });
  const double sink_norm = *std::max_element(norms.begin(), norms.end()) * 0.999;
  const LayerHarm found = layer_harm(context, streams, 1, CheapPath(), sink_norm, sampled);
  EXPECT_EQ(found.predictions, std::vector<double>(3, kTokens - 1));
  EXPECT_EQ(found.sinks, 3u);  // the same token in each of three copies
  double harm_sum = 0, energy_sum = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    if (norms[t] > sink_norm) continue;
    harm_sum += harm[t];
    energy_sum += energy[t];
  }
  EXPECT_NEAR(found.harm[0], harm_sum, 1e-9 * harm_sum);
  EXPECT_NEAR(found.energy[0], energy_sum, 1e-9 * energy_sum);
  EXPECT_NEAR(found.scale() * std::accumulate(found.energy.begin(), found.energy.end(), 0.0),
              std::accumulate(found.harm.begin(), found.harm.end(), 0.0), 1e-12);
  for (size_t b = 0; b < samples.size(); ++b) {
    EXPECT_EQ(0, std::memcmp(streams[b].residual.data(), slow[b].residual.data(),
                             streams[b].residual.size() * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HarmTest,
                         testing::Values("gpt2_base", "neox_base", "llama_gqa", "mistral_window"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace halflin
