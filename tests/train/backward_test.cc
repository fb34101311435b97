// The backward pass against PyTorch's autograd on the fixture models of every family
// (tests/reference/make_gradient_fixtures.py made the figures).
#include "halflin/train/backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "halflin/base/error.h"
#include "halflin/train/checkpoint.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

TensorFile figures(const std::string& name) {
  return open_safetensors(fs::path(HALFLIN_FIXTURES) / "gradients" / (name + ".safetensors"));
}

std::vector<float> read(const TensorFile& file, const std::string& name) {
  const TensorInfo& tensor = file.at(name);
  std::vector<float> values(tensor.elements());
  read_f32(tensor, 0, values);
  return values;
}

std::string model_folder(const std::string& name) {
  return fs::path(HALFLIN_FIXTURES) / "models" / name;
}

Batch batch_of(const std::string& name, size_t copies = 1) {
  const std::vector<float> values =
      read(open_safetensors(fs::path(model_folder(name)) / "expected.safetensors"), "input_ids");
  const std::vector<int32_t> ids(values.begin(), values.end());
  Batch batch;
  for (size_t i = 0; i < copies; ++i) batch.add(ids);
  return batch;
}

// |found - want| / |want| as vectors.
double difference(std::span<const float> want, std::span<const float> found) {
  EXPECT_EQ(want.size(), found.size());
  double square = 0, norm = 0;
  for (size_t i = 0; i < std::min(want.size(), found.size()); ++i) {
    square += std::pow(static_cast<double>(want[i]) - static_cast<double>(found[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(square / std::max(norm, 1e-30));
}

// A fixture model with every parameter trainable, and what a pass needs.
struct Trained {
  ThreadPool pool;
  Checkpoint checkpoint;
  TrainModel model;
  TrainWorkspace workspace;

  explicit Trained(const std::string& name, int threads = 2)
      : pool(threads),
        checkpoint(read_checkpoint(model_folder(name))),
        model(load_train_model(pool, checkpoint, 37)) {
    set_trainable(parameters(model), true);
  }

  void expect_gradients(const TensorFile& want, double tolerance) const {
    const auto stored = stored_tensors(model, checkpoint.architecture.layout, /*gradients=*/true);
    EXPECT_FALSE(stored.empty());
    for (const StoredTensor& tensor : stored) {
      // Keys' biases shift all scores of a row alike: their gradient is 0, rounding in both.
      if (tensor.name.find("k_proj.bias") != std::string::npos) continue;
      EXPECT_LT(difference(read(want, tensor.name), tensor.values.span()), tolerance)
          << tensor.name;
    }
  }
};

class Gradients : public testing::TestWithParam<std::string> {};

TEST_P(Gradients, EqualPyTorch) {
  const TensorFile want = figures(GetParam());
  for (const bool recompute : {false, true}) {
    Trained t(GetParam());
    t.workspace.recompute = recompute;
    const Batch batch = batch_of(GetParam());
    size_t layers_seen = 0;
    const PassResult result =
        backward(t.pool, t.model, batch, {}, t.workspace,
                 [&](size_t l, Operand, MatView<const float> gradient) {
                   const std::vector<float> at = read(want, fmt::format("mlp_out.{}", l));
                   EXPECT_LT(difference(at, {gradient.data, gradient.rows * gradient.cols}), 1e-4);
                   ++layers_seen;
                 });
    EXPECT_EQ(layers_seen, t.model.config.layers);
    EXPECT_EQ(result.tokens, batch.rows() - 1);
    EXPECT_NEAR(result.mean_loss(), read(want, "loss")[0], 1e-5);
    t.expect_gradients(want, 1e-4);
  }
}

TEST_P(Gradients, InBf16AreClose) {
  Trained t(GetParam());
  t.workspace.precision = Precision::kBF16;
  const PassResult result = backward(t.pool, t.model, batch_of(GetParam()), {}, t.workspace);
  const TensorFile want = figures(GetParam());
  EXPECT_NEAR(result.mean_loss(), read(want, "loss")[0], 0.1);
  // Weights as large as the fixtures' make bfloat16's 3 digits felt.
  t.expect_gradients(want, 0.3);
}

// Three copies packed into one batch: the mean's gradient is that of one.
TEST_P(Gradients, PackedSequencesAreIndependent) {
  Trained t(GetParam());
  backward(t.pool, t.model, batch_of(GetParam(), 3), {}, t.workspace);
  t.expect_gradients(figures(GetParam()), 1e-4);
}

TEST_P(Gradients, AreTheSameForAnyNumberOfThreads) {
  std::vector<std::vector<StoredTensor>> runs;
  for (const int threads : {1, 2, 3, 2}) {
    Trained t(GetParam(), threads);
    backward(t.pool, t.model, batch_of(GetParam(), 5), {}, t.workspace);
    runs.push_back(stored_tensors(t.model, t.checkpoint.architecture.layout, true));
  }
  for (size_t run = 1; run < runs.size(); ++run) {
    for (size_t i = 0; i < runs[0].size(); ++i) {
      EXPECT_EQ(0, std::memcmp(runs[0][i].values.data(), runs[run][i].values.data(),
                               runs[0][i].values.size() * sizeof(float)))
          << runs[0][i].name << " in run " << run;
    }
  }
}

// Freezing changes no other gradient, holds no memory and stops where nothing below trains.
TEST_P(Gradients, OfUnfrozenPartsStayTheSame) {
  Trained all(GetParam());
  backward(all.pool, all.model, batch_of(GetParam()), {}, all.workspace);
  const std::vector<Parameter*> whole = parameters(all.model);
  for (size_t chosen = 0; chosen < whole.size(); ++chosen) {
    Trained one(GetParam());
    const std::vector<Parameter*> parts = parameters(one.model);
    set_trainable(parts, false);
    set_trainable(std::span(parts).subspan(chosen, 1), true);
    backward(one.pool, one.model, batch_of(GetParam()), {}, one.workspace);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i != chosen) {
        EXPECT_TRUE(parts[i]->gradient.empty()) << parts[i]->name;
      } else {
        EXPECT_EQ(0, std::memcmp(parts[i]->gradient.data(), whole[i]->gradient.data(),
                                 whole[i]->gradient.size() * sizeof(float)))
            << parts[i]->name;
      }
    }
  }
}

TEST_P(Gradients, AddUpOverBatches) {
  Trained t(GetParam());
  Objective half;
  half.scale = 0.5f / 36.f;
  backward(t.pool, t.model, batch_of(GetParam()), half, t.workspace);
  backward(t.pool, t.model, batch_of(GetParam()), half, t.workspace);
  t.expect_gradients(figures(GetParam()), 1e-4);
  zero_gradients(t.pool, t.model);
  for (const Parameter* p : parameters(t.model)) {
    for (const float v : p->gradient.span()) EXPECT_EQ(v, 0.f);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Gradients,
                         testing::Values("gpt2_base", "gpt2_head7_relu", "gpt2_inverse_layer_scale",
                                         "gpt2_untied_unscaled", "neox_base", "neox_sequential",
                                         "neox_tied_no_attention_bias", "llama_gqa", "llama_biases",
                                         "mistral_window"),
                         [](const auto& info) { return info.param; });

TEST(Distillation, EqualsPyTorch) {
  Trained student("llama_gqa");
  const Batch batch = batch_of("llama_gqa");
  const Model teacher =
      load_model(student.pool, read_checkpoint(model_folder("llama_biases")), Precision::kF32, 37);
  Workspace workspace(teacher, batch.rows());
  Objective objective;
  objective.kind = Objective::Kind::kDistill;
  objective.teacher = {&teacher, {}, 2.f, &workspace};
  const PassResult result =
      backward(student.pool, student.model, batch, objective, student.workspace);
  const TensorFile want = figures("distill");
  EXPECT_NEAR(result.mean_loss(), read(want, "loss")[0], 1e-4);
  student.expect_gradients(want, 1e-4);
}

TEST(Distillation, FromItselfHasNoGradient) {
  Trained student("gpt2_base");
  const Batch batch = batch_of("gpt2_base");
  const Model teacher =
      load_model(student.pool, read_checkpoint(model_folder("gpt2_base")), Precision::kF32, 37);
  Workspace workspace(teacher, batch.rows());
  Objective objective;
  objective.kind = Objective::Kind::kDistill;
  objective.teacher = {&teacher, {}, 1.f, &workspace};
  const PassResult result =
      backward(student.pool, student.model, batch, objective, student.workspace);
  EXPECT_NEAR(result.mean_loss(), 0, 1e-5);
  for (const Parameter* p : parameters(student.model)) {
    for (const float v : p->gradient.span()) EXPECT_NEAR(v, 0.f, 1e-4) << p->name;
  }
}

// A parameter of `places.safetensors`.
Parameter place_parameter(const TensorFile& file, const std::string& name) {
  Parameter p;
  const TensorInfo& tensor = file.at("value." + name);
  const size_t cols = tensor.shape.back();
  p.value = Matrix<float>(tensor.elements() / cols, cols);
  read_f32(tensor, 0, p.value.span());
  p.name = name;
  return p;
}

TrainAffine place_affine(const TensorFile& file, const std::string& name, bool bias) {
  TrainAffine affine;
  affine.weight = place_parameter(file, name + ".weight");
  if (bias) affine.bias = place_parameter(file, name + ".bias");
  return affine;
}

void install_places(const TensorFile& file, TrainModel& model) {
  const std::string first = "model.layers.0.mlp.";
  MlpPlace& soft = model.layers[0].mlp;
  soft.route = Route::kSoft;
  soft.cheap.affine = place_affine(file, first + "affine", true);
  soft.gate.hidden = place_affine(file, first + "hidden", true);
  soft.gate.out = place_affine(file, first + "out", true);
  const std::string second = "model.layers.1.mlp.";
  MlpPlace& hard = model.layers[1].mlp;
  hard.route = Route::kHard;
  hard.cheap.low_rank_in = place_affine(file, second + "low_rank_in", false);
  hard.cheap.low_rank_out = place_affine(file, second + "low_rank_out", true);
  TrainMlp narrow;
  narrow.activation = Activation::kSilu;
  narrow.gate = place_affine(file, second + "narrow.gate", false);
  narrow.up = place_affine(file, second + "narrow.up", false);
  narrow.down = place_affine(file, second + "narrow.down", false);
  hard.cheap.narrow = std::move(narrow);
  hard.cheap.constant = place_parameter(file, second + "constant");
  hard.gate.out = place_affine(file, second + "out", true);
}

TEST(Places, SoftAndHardGatesEqualPyTorch) {
  const TensorFile want = figures("places");
  for (const bool recompute : {false, true}) {
    Trained t("llama_gqa");
    t.workspace.recompute = recompute;
    install_places(want, t.model);
    for (TrainLayer& layer : t.model.layers) set_trainable(parameters(layer), true);
    Objective objective;
    objective.penalty.mean_weight = 0.1f;
    const PassResult result =
        backward(t.pool, t.model, batch_of("llama_gqa"), objective, t.workspace);
    const std::vector<float> means = read(want, "means");
    EXPECT_NEAR(result.mean_loss(), read(want, "loss")[0], 1e-5);
    EXPECT_NEAR(result.gates[0].mean, means[0], 1e-5);
    EXPECT_NEAR(result.gates[1].mean, means[1], 1e-5);
    EXPECT_GT(result.gates[1].full, 0.1);  // both routes are taken
    EXPECT_LT(result.gates[1].full, 0.9);
    EXPECT_NEAR(result.penalty, 0.1 * (means[0] + means[1]) / 2, 1e-6);
    t.expect_gradients(want, 1e-4);
    size_t compared = 0;
    for (TrainLayer& layer : t.model.layers) {
      for (const Parameter* p : parameters(layer)) {
        if (want.find("value." + p->name) == nullptr) continue;
        EXPECT_LT(difference(read(want, p->name), p->gradient.span()), 1e-4) << p->name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, 6u + 9u);
  }
}

// A cheap route is the gated one's limit: p = 0.
TEST(Places, CheapRouteIsAClosedGate) {
  const TensorFile file = figures("places");
  std::vector<double> losses;
  for (const bool gated : {false, true}) {
    Trained t("llama_gqa");
    install_places(file, t.model);
    for (TrainLayer& layer : t.model.layers) {
      layer.mlp.route = gated ? Route::kHard : Route::kCheap;
      for (float& v : layer.mlp.gate.out.weight.value.span()) v = 0.f;
      layer.mlp.gate.out.bias.value(0, 0) = -1.f;
    }
    losses.push_back(evaluate(t.pool, t.model, batch_of("llama_gqa"), {}, t.workspace).mean_loss());
    EXPECT_EQ(losses.back(),
              backward(t.pool, t.model, batch_of("llama_gqa"), {}, t.workspace).mean_loss());
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-6);
}

TEST(Sampled, DrawnLabelsGiveTheirGradients) {
  Trained t("gpt2_base");
  Objective objective;
  objective.kind = Objective::Kind::kSampled;
  objective.seed = 5;
  const Batch batch = batch_of("gpt2_base");
  const PassResult result = backward(t.pool, t.model, batch, objective, t.workspace);
  EXPECT_EQ(result.drawn.back(), -1);
  const PassResult again = evaluate(t.pool, t.model, batch, objective, t.workspace);
  EXPECT_EQ(result.drawn, again.drawn);
  EXPECT_EQ(result.losses, again.losses);
  objective.seed = 6;
  EXPECT_NE(result.drawn, evaluate(t.pool, t.model, batch, objective, t.workspace).drawn);
}

TEST(Errors, NameWhatIsWrong) {
  Trained t("gpt2_base");
  Batch outside;
  outside.add(std::vector<int32_t>{1, 99999});
  EXPECT_THROW(backward(t.pool, t.model, outside, {}, t.workspace), Error);
  Batch one;
  one.add(std::vector<int32_t>{1});
  EXPECT_THROW(backward(t.pool, t.model, one, {}, t.workspace), Error);
  t.model.layers[0].mlp.route = Route::kSoft;
  EXPECT_THROW(backward(t.pool, t.model, batch_of("gpt2_base"), {}, t.workspace), Error);
}

}  // namespace
}  // namespace halflin
