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
  const bool gguf = GetParam().ends_with("_gguf");
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
  const fs::path out = fs::path(testing::TempDir()) / ("halflin_saved_" + GetParam());
  if (gguf) {
    EXPECT_THROW(save_train_model(model, checkpoint, out, DType::kF32), Error);
    return;
  }
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

INSTANTIATE_TEST_SUITE_P(Models, RoundTrip, testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halflin
