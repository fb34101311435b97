// The forward pass against transformers' figures on tiny random checkpoints of every family
// (tests/reference/make_fixtures.py made them).
#include "halflin/model/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "halflin/base/error.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(HALFLIN_FIXTURES "/models")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Matrix<float> read_expected(const TensorFile& file, const std::string& name) {
  const TensorInfo& tensor = file.at(name);
  Matrix<float> m(tensor.shape[0], tensor.shape[1]);
  read_f32(tensor, 0, m.span());
  return m;
}

std::vector<int32_t> read_ids(const TensorFile& file) {
  const TensorInfo& tensor = file.at("input_ids");
  std::vector<float> values(tensor.elements());
  read_f32(tensor, 0, values);
  return std::vector<int32_t>(values.begin(), values.end());
}

std::string model_path(const std::string& fixture) {
  const fs::path folder = fs::path(HALFLIN_FIXTURES) / "models" / fixture;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") return entry.path();
  }
  return folder;
}

// Largest difference as a share of the expected values' range.
double relative_difference(MatView<const float> expected, MatView<const float> found) {
  double low = INFINITY, high = -INFINITY, difference = 0;
  for (size_t r = 0; r < expected.rows; ++r) {
    for (size_t c = 0; c < expected.cols; ++c) {
      low = std::min<double>(low, expected(r, c));
      high = std::max<double>(high, expected(r, c));
      difference = std::max<double>(difference, std::abs(expected(r, c) - found(r, c)));
      if (!std::isfinite(found(r, c))) return INFINITY;
    }
  }
  return difference / (high - low);
}

class Fixture : public testing::TestWithParam<std::string> {
 protected:
  TensorFile expected_ =
      open_safetensors(fs::path(HALFLIN_FIXTURES) / "models" / GetParam() / "expected.safetensors");
  std::vector<int32_t> ids_ = read_ids(expected_);

  Matrix<float> logits(Precision precision, int threads, size_t copies = 1) {
    ThreadPool pool(threads);
    const Model model =
        load_model(pool, read_checkpoint(model_path(GetParam())), precision, ids_.size());
    Batch batch;
    for (size_t i = 0; i < copies; ++i) batch.add(ids_);
    Workspace workspace(model, batch.rows());
    Matrix<float> residual(batch.rows(), model.config.d_model);
    Matrix<float> logits(batch.rows(), model.config.vocab);
    embed(model, batch, residual.view());
    run_layers(pool, model, 0, batch.offsets, residual.view(), workspace);
    final_logits(pool, model, residual.view(), workspace, logits.view());
    return logits;
  }
};

// Those whose expected values include the tensors inside the layers.
class HookedFixture : public Fixture {};

std::vector<std::string> hooked_names() {
  std::vector<std::string> names = fixture_names();
  std::erase_if(names, [](const std::string& name) {
    const fs::path folder = fs::path(HALFLIN_FIXTURES) / "models" / name;
    return open_safetensors(folder / "expected.safetensors").find("mlp_in.0") == nullptr;
  });
  return names;
}

TEST_P(Fixture, LogitsEqualTransformers) {
  if (GetParam() == "llama_rope_dynamic") {
    // Longer than its positions, where dynamic scaling would begin: refused.
    EXPECT_THROW(logits(Precision::kF32, 1), Error);
    return;
  }
  const Matrix<float> want = read_expected(expected_, "logits");
  const Matrix<float> found = logits(Precision::kF32, 1);
  EXPECT_LT(relative_difference(want.view(), found.view()), 1e-4);
}

TEST_P(Fixture, Bf16IsClose) {
  if (GetParam() == "llama_rope_dynamic") return;
  const Matrix<float> want = read_expected(expected_, "logits");
  const Matrix<float> found = logits(Precision::kBF16, 1);
  EXPECT_LT(relative_difference(want.view(), found.view()), 0.05);
}

TEST_P(Fixture, PackedSequencesDoNotSeeEachOther) {
  if (GetParam() == "llama_rope_dynamic") return;
  const Matrix<float> one = logits(Precision::kF32, 1);
  const Matrix<float> five = logits(Precision::kF32, 3, 5);  // also crosses row blocks
  for (size_t i = 0; i < 5; ++i) {
    const auto part = five.view().row_range(i * one.rows(), one.rows());
    EXPECT_LT(relative_difference(one.view(), part), 1e-6) << "copy " << i;
  }
}

TEST_P(HookedFixture, StepsEqualTransformersHooks) {
  ThreadPool pool(1);
  const Model model =
      load_model(pool, read_checkpoint(model_path(GetParam())), Precision::kF32, ids_.size());
  Batch batch;
  batch.add(ids_);
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), model.config.d_model);
  Matrix<float> out(batch.rows(), model.config.d_model);
  embed(model, batch, residual.view());
  for (size_t l = 0; l < model.config.layers; ++l) {
    const MutableOperand x =
        attention_step(pool, model, l, batch.offsets, residual.view(), workspace);
    const Matrix<float> want_in = read_expected(expected_, fmt::format("mlp_in.{}", l));
    const MatView<const float> found_in(x.f32_row(0), x.rows, x.cols);
    EXPECT_LT(relative_difference(want_in.view(), found_in), 1e-5) << "layer " << l;
    apply_mlp(pool, model.layers[l].mlp, x, false, out.view(), workspace.mlp);
    const Matrix<float> want_out = read_expected(expected_, fmt::format("mlp_out.{}", l));
    EXPECT_LT(relative_difference(want_out.view(), out.view()), 1e-5) << "layer " << l;
    for (size_t i = 0; i < out.size(); ++i) residual.data()[i] += out.data()[i];
  }
  const Matrix<float> want = read_expected(expected_, "resid_final");
  EXPECT_LT(relative_difference(want.view(), residual.view()), 1e-5);
}

TEST_P(Fixture, LossesAreTheLogitsLosses) {
  if (GetParam() == "llama_rope_dynamic") return;
  const Matrix<float> all = logits(Precision::kF32, 1);
  ThreadPool pool(2);
  const Model model =
      load_model(pool, read_checkpoint(model_path(GetParam())), Precision::kF32, ids_.size());
  Batch batch;
  batch.add(ids_);
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), model.config.d_model);
  embed(model, batch, residual.view());
  run_layers(pool, model, 0, batch.offsets, residual.view(), workspace);
  std::vector<float> losses(batch.rows());
  final_losses(pool, model, batch, residual.view(), workspace, losses);
  EXPECT_EQ(losses.back(), 0.f);
  for (size_t t = 0; t + 1 < batch.rows(); ++t) {
    double sum = 0;
    for (size_t v = 0; v < all.cols(); ++v) sum += std::exp(static_cast<double>(all(t, v)));
    const double want = std::log(sum) - all(t, static_cast<size_t>(ids_[t + 1]));
    EXPECT_NEAR(losses[t], want, 1e-5 * std::max(1.0, want)) << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Fixture, testing::ValuesIn(fixture_names()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Models, HookedFixture, testing::ValuesIn(hooked_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halflin
