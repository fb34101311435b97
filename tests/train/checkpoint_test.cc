// Weights into training and back: every family's tensors come back as they were.
#include "halflin/train/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "halflin/base/error.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(HALFLIN_FIXTURES "/models")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class RoundTrip : public testing::TestWithParam<std::string> {};

TEST_P(RoundTrip, EveryTensorIsTheSame) {
  const fs::path folder = fs::path(HALFLIN_FIXTURES) / "models" / GetParam();
  ThreadPool pool(2);
  const Checkpoint checkpoint = read_checkpoint(folder);
  const TrainModel model = load_train_model(
      pool, checkpoint, std::min<size_t>(16, checkpoint.architecture.config.max_positions));
  size_t seen = 0;
  for (const StoredTensor& tensor :
       stored_tensors(model, checkpoint.architecture.layout, /*gradients=*/false)) {
    const TensorInfo* stored = checkpoint.file.find(tensor.name);
    ASSERT_NE(stored, nullptr) << tensor.name;
    EXPECT_EQ(tensor.shape, stored->shape) << tensor.name;
    std::vector<float> want(stored->elements());
    read_f32(*stored, 0, want);
    EXPECT_EQ(0, std::memcmp(want.data(), tensor.values.data(), want.size() * sizeof(float)))
        << tensor.name;
    seen += want.size();
  }
  EXPECT_EQ(seen, checkpoint.parameters);
  if (GetParam().ends_with("_gguf")) return;
  const fs::path out = fs::path(testing::TempDir()) / ("halflin_saved_" + GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    save_train_model(model, checkpoint, out, dtype);
    const Checkpoint saved = read_checkpoint(out);
    EXPECT_EQ(saved.parameters, checkpoint.parameters);
    for (const auto& [name, tensor] : saved.file.tensors) {
      EXPECT_EQ(tensor.dtype, dtype);
      std::vector<float> want(tensor.elements()), found(tensor.elements());
      read_f32(checkpoint.file.at(name), 0, want);
      read_f32(tensor, 0, found);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(found[i], dtype == DType::kF32 ? want[i] : to_float(to_bf16(want[i])));
      }
    }
  }
  fs::remove_all(out);
}

// Saved without the config.json it came with (if any): the model loads as the same model.
TEST_P(RoundTrip, ConfigurationMadeAnew) {
  const fs::path folder = fs::path(HALFLIN_FIXTURES) / "models" / GetParam();
  ThreadPool pool(2);
  const Checkpoint checkpoint = read_checkpoint(folder);
  const Config& config = checkpoint.architecture.config;
  const size_t window = std::min<size_t>(16, config.max_positions);
  TrainModel model = load_train_model(pool, checkpoint, window);
  const fs::path out = fs::path(testing::TempDir()) / ("halflin_anew_" + GetParam());
  const std::string name = GetParam();
  if (name.find("llama3") != std::string::npos || name.find("yarn") != std::string::npos ||
      name == "llama_old_config") {
    EXPECT_THROW(save_new_model(model, out, DType::kF32), Error);  // says which frequency
    return;
  }
  save_new_model(model, out, DType::kF32);
  const Checkpoint saved = read_checkpoint(out);
  const Config& found = saved.architecture.config;
  EXPECT_EQ(found.family, config.family);
  EXPECT_EQ(found.d_mlp, config.d_mlp);
  EXPECT_EQ(found.max_positions, config.max_positions);
  EXPECT_EQ(found.norm, config.norm);
  EXPECT_EQ(found.norm_epsilon, config.norm_epsilon);
  EXPECT_EQ(found.activation, config.activation);
  EXPECT_EQ(found.parallel_residual, config.parallel_residual);
  EXPECT_EQ(found.scale_by_layer, config.scale_by_layer);
  EXPECT_EQ(found.attention.heads, config.attention.heads);
  EXPECT_EQ(found.attention.kv_heads, config.attention.kv_heads);
  EXPECT_EQ(found.attention.head_dim, config.attention.head_dim);
  EXPECT_EQ(found.attention.scale, config.attention.scale);
  EXPECT_EQ(found.attention.window, config.attention.window);
  EXPECT_EQ(found.rope.dims, config.rope.dims);
  ASSERT_EQ(found.rope.frequencies.size(), config.rope.frequencies.size());
  for (size_t i = 0; i < found.rope.frequencies.size(); ++i) {
    EXPECT_NEAR(found.rope.frequencies[i], config.rope.frequencies[i],
                1e-6 * config.rope.frequencies[i]);
  }
  EXPECT_EQ(saved.parameters, checkpoint.parameters);
  TrainModel again = load_train_model(pool, saved, window);
  const std::vector<Parameter*> want = parameters(model), got = parameters(again);
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(want[i]->name, got[i]->name);
    EXPECT_EQ(0, std::memcmp(want[i]->value.data(), got[i]->value.data(),
                             want[i]->value.size() * sizeof(float)))
        << want[i]->name;
  }
  fs::remove_all(out);
}

INSTANTIATE_TEST_SUITE_P(Models, RoundTrip, testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halflin
