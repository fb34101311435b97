// A model with cheaper MLPs, written as a stock model, computes the same.
#include <gtest/gtest.h>

#include <cmath>

#include "halflin/base/random.h"
#include "halflin/io/tokenizer.h"
#include "halflin/measure/paths.h"
#include "halflin/model/forward.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/gguf_export.h"
#include "halflin/train/stock_mlp.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTokens = 24;

PlainLinear random_linear(Random& random, size_t out, size_t in, bool bias) {
  PlainLinear linear;
  linear.weight = Matrix<float>(out, in);
  for (float& v : linear.weight.span()) v = 0.3f * static_cast<float>(random.normal());
  if (bias) linear.bias.resize(out);
  for (float& v : linear.bias) v = 0.3f * static_cast<float>(random.normal());
  return linear;
}

// What stands in the last layer's MLP's place; 0 leaves a part out.
struct Parts {
  bool affine = false;
  size_t rank = 0;
  size_t neurons = 0;
  bool constant = false;
};

Allocation make_allocation(const Checkpoint& checkpoint, const Parts& parts) {
  const Config& config = checkpoint.architecture.config;
  Random random(11, "export");
  const size_t d = config.d_model;
  Allocation allocation;
  allocation.model = allocation_model(checkpoint.path, checkpoint);
  allocation.layers.resize(config.layers);
  PlainOption option;
  PlainPath& path = option.path;
  path.kind = "test";
  if (parts.affine) path.affine = random_linear(random, d, d, true);
  if (parts.rank != 0) {
    path.low_rank_in = random_linear(random, parts.rank, d, false);
    path.low_rank_out = random_linear(random, d, parts.rank, true);
  }
  for (size_t j = 0; j < parts.neurons; ++j) {
    path.neurons.kept.push_back(static_cast<int32_t>(j + j / 2));
  }
  if (parts.constant) path.constant = random_linear(random, d, 1, true).bias;
  allocation.layers.back().push_back(std::move(option));
  return allocation;
}

Matrix<float> logits(Checkpoint checkpoint, const Allocation* allocation) {
  ThreadPool pool(1);
  const Model model = load_model(pool, std::move(checkpoint), Precision::kF32, kTokens);
  Batch batch;
  std::vector<int32_t> ids(kTokens);
  for (size_t i = 0; i < kTokens; ++i) ids[i] = static_cast<int32_t>(i * 7 % 31);
  batch.add(ids);
  Workspace workspace(model, kTokens);
  Matrix<float> residual(kTokens, model.config.d_model);
  embed(model, batch, residual.view());
  std::vector<MlpPath> paths;
  if (allocation != nullptr) paths = pack_allocation(pool, model, *allocation);
  run_layers(pool, model, 0, batch.offsets, residual.view(), workspace, paths);
  Matrix<float> out(kTokens, model.config.vocab);
  final_logits(pool, model, residual.view(), workspace, out.view());
  return out;
}

void expect_near(const Matrix<float>& a, const Matrix<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 0;
  for (const float v : a.span()) largest = std::max<double>(largest, std::abs(v));
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error = std::max<double>(error, std::abs(a.span()[i] - b.span()[i]));
  }
  EXPECT_LE(error, tolerance * largest);
}

fs::path fixture(const std::string& name) {
  const fs::path folder = fs::path(HALFLIN_FIXTURES) / "models" / name;
  return name.ends_with("_gguf") ? folder / "model.gguf" : folder;
}

struct Case {
  const char* model;
  const char* name;
  Parts parts;
};

class Exported : public testing::TestWithParam<Case> {};

TEST_P(Exported, ComputesTheSame) {
  const Case& c = GetParam();
  const TemporaryFolder folder;
  ThreadPool pool(1);
  const Checkpoint checkpoint = read_checkpoint(fixture(c.model));
  const Allocation allocation = make_allocation(checkpoint, c.parts);
  const Matrix<float> want = logits(checkpoint, &allocation);
  const Matrix<float> dense = logits(checkpoint, nullptr);
  TrainModel model = load_train_model(pool, checkpoint, 1);
  apply_allocation(model, allocation, "a.safetensors");
  make_stock(model);
  const bool gguf = std::string_view(c.model).ends_with("_gguf");
  if (gguf) {
    save_gguf(model, checkpoint, folder.path / "model.gguf", DType::kF32);
  } else {
    const bool biases = checkpoint.architecture.config.family == "llama" &&
                        model.layers[0].mlp.full->up.bias.exists();
    save_train_model(model, checkpoint, folder.path, DType::kF32,
                     biases ? nlohmann::json{{"mlp_bias", true}} : nlohmann::json::object());
  }
  const Matrix<float> found = logits(read_checkpoint(folder.path), nullptr);
  expect_near(want, found, 3e-6);
  double change = 0;  // the path is not the MLP
  for (size_t i = 0; i < dense.size(); ++i) {
    change = std::max<double>(change, std::abs(dense.span()[i] - want.span()[i]));
  }
  EXPECT_GT(change, 0.01);
}

INSTANTIATE_TEST_SUITE_P(
    All, Exported,
    testing::Values(Case{"gpt2_base", "affine", {.affine = true}},
                    Case{"gpt2_base", "folded", {.affine = true, .neurons = 40}},
                    Case{"gpt2_base", "skip", {}},
                    Case{"gpt2_exact_gelu", "low_rank", {.rank = 12, .neurons = 5}},
                    Case{"gpt2_head7_relu", "low_rank", {.rank = 10, .constant = true}},
                    Case{"neox_base", "folded", {.rank = 12, .neurons = 9}},
                    Case{"neox_full_rotary_tanh", "narrow", {.neurons = 9, .constant = true}},
                    Case{"llama_gqa", "affine", {.affine = true}},
                    Case{"llama_gqa", "narrow", {.neurons = 10}},
                    Case{"llama_biases", "folded", {.rank = 10, .neurons = 12}},
                    Case{"mistral_no_window", "narrow", {.neurons = 10}},
                    Case{"gpt2_gguf", "folded", {.affine = true, .neurons = 40}},
                    Case{"neox_gguf", "low_rank", {.rank = 15, .neurons = 3}},
                    Case{"llama_gguf", "affine", {.affine = true}}),
    [](const auto& info) { return std::string(info.param.model) + "_" + info.param.name; });

std::string refusal(const std::string& name, const Parts& parts, bool gated = false) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = read_checkpoint(fixture(name));
  Allocation allocation = make_allocation(checkpoint, parts);
  if (gated) {
    allocation.layers.back()[0].gate =
        Gate{.name = "harm", .weight = std::vector<float>(checkpoint.architecture.config.d_model)};
  }
  TrainModel model = load_train_model(pool, checkpoint, 1);
  return error_of([&] {
    apply_allocation(model, allocation, "a.safetensors");
    make_stock(model);
  });
}

TEST(Export, RefusesWhatIsNotExactAndSaysWhy) {
  EXPECT_CONTAINS(refusal("gpt2_exact_gelu", {.affine = true}),
                  "layer 0: 0 neurons and an affine map of 24 inputs take 48 hidden units, and the "
                  "model's MLPs have 29");
  EXPECT_CONTAINS(refusal("gpt2_base", {.affine = true, .neurons = 48 + 1}), "97 hidden units");
  EXPECT_CONTAINS(refusal("llama_gqa", {.affine = true, .neurons = 2}),
                  "layer 1: 2 neurons and an affine map of 24 inputs take 26 hidden units");
  EXPECT_CONTAINS(refusal("mistral_no_window", {.affine = true}), "needs biases");
  EXPECT_CONTAINS(refusal("mistral_no_window", {.neurons = 3, .constant = true}), "needs biases");
  EXPECT_CONTAINS(refusal("gpt2_base", {.affine = true}, true), "layer 1 is gated");
}

// A Hugging Face model with a tokenizer of its own as GGUF.
struct Converted : testing::Test {
  TemporaryFolder folder;
  nlohmann::json tokenizer = nlohmann::json::parse(R"({
      "model": {"type": "BPE", "vocab": {"\u0120": 0, "a": 1, "b": 2, "c": 3, "ab": 4,
        "\u0120ab": 5, "\u010a": 6}, "merges": [["a", "b"], "\u0120 ab"]},
      "added_tokens": [{"id": 8, "content": "<end>", "special": true},
                       {"id": 9, "content": "<x>", "special": false}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "decoder": {"type": "ByteLevel"}})");

  Checkpoint convert(const std::string& name) {
    fs::copy(fixture(name), folder.path / "hf");
    folder.write("hf/tokenizer.json", tokenizer.dump());
    folder.write("hf/tokenizer_config.json",
                 R"({"bos_token": "<end>", "eos_token": "<end>", "chat_template": "{{ 1 }}"})");
    ThreadPool pool(1);
    const Checkpoint checkpoint = read_checkpoint(folder.path / "hf");
    TrainModel model = load_train_model(pool, checkpoint, 1);
    save_gguf(model, checkpoint, folder.path / "model.gguf", DType::kF32);
    return read_checkpoint(folder.path / "model.gguf");
  }
};

TEST_F(Converted, Gpt2IsTheSameModelWithTheSameTokenizer) {
  const Checkpoint gguf = convert("gpt2_base");
  expect_near(logits(read_checkpoint(folder.path / "hf"), nullptr), logits(gguf, nullptr), 1e-6);
  const Tokenizer own = Tokenizer::from_directory(folder.path / "hf");
  const Tokenizer written = Tokenizer::from_gguf(gguf.file.metadata, "model.gguf");
  for (const char* text : {"ab ab<end>c\n", "<x>ab aab  b", ""}) {
    EXPECT_EQ(written.encode(text), own.encode(text)) << text;
  }
  EXPECT_EQ(written.eos(), own.eos());
  EXPECT_TRUE(written.is_special(8));
  EXPECT_FALSE(written.is_special(9));
  EXPECT_EQ(written.size(), 37u);  // a name for every row of the embedding
  EXPECT_EQ(gguf.file.metadata.at("tokenizer.chat_template"), "{{ 1 }}");
  EXPECT_EQ(gguf.file.metadata.at("general.name"), "hf");
}

TEST_F(Converted, NeoXComposes) {
  tokenizer["normalizer"] = {{"type", "NFC"}};
  const Checkpoint gguf = convert("neox_base");
  expect_near(logits(read_checkpoint(folder.path / "hf"), nullptr), logits(gguf, nullptr), 1e-6);
  EXPECT_EQ(gguf.file.metadata.at("tokenizer.ggml.pre"), "olmo");
  tokenizer.erase("normalizer");
  fs::remove_all(folder.path / "hf");
  const Tokenizer plain = Tokenizer::from_gguf(convert("neox_base").file.metadata, "model.gguf");
  EXPECT_EQ(plain.encode("ab c"), Tokenizer::from_directory(folder.path / "hf").encode("ab c"));
}

TEST_F(Converted, LlamaSplitsDigits) {
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  const Checkpoint gguf = convert("llama_gqa");
  expect_near(logits(read_checkpoint(folder.path / "hf"), nullptr), logits(gguf, nullptr), 1e-6);
  EXPECT_EQ(gguf.file.metadata.at("tokenizer.ggml.pre"), "smollm");
}

TEST_F(Converted, HasTheHeadThatReadersAskFor) {
  tokenizer["normalizer"] = {{"type", "NFC"}};
  const Checkpoint gguf = convert("neox_tied_no_attention_bias");
  expect_near(logits(read_checkpoint(folder.path / "hf"), nullptr), logits(gguf, nullptr), 1e-6);
  EXPECT_NE(gguf.file.find("output.weight"), nullptr);
  EXPECT_NE(gguf.file.find("blk.0.attn_qkv.bias"), nullptr);
}

TEST_F(Converted, WhatGgufCannotSayIsRefused) {
  const auto refused = [&](const std::string& name) {
    fs::remove_all(folder.path / "hf");
    return error_of([&] { convert(name); });
  };
  EXPECT_CONTAINS(refused("gpt2_exact_gelu"), "which activation");
  EXPECT_CONTAINS(refused("gpt2_inverse_layer_scale"), "how attention is scaled");
  EXPECT_CONTAINS(refused("llama_rope_yarn"), "rotary");
  EXPECT_CONTAINS(refused("mistral_window"), "in a window");
  tokenizer["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_CONTAINS(refused("gpt2_base"), "normalizer and pre-tokenizer (ByteLevel) have no name");
  tokenizer["pre_tokenizer"] = nullptr;
  EXPECT_CONTAINS(refused("gpt2_base"), "only byte-level BPE");
  EXPECT_FALSE(fs::exists(folder.path / "model.gguf"));
}

}  // namespace
}  // namespace halflin
