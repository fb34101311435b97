// The decoder on weights in every format, as it reads them and dequantised.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "halflin/base/error.h"
#include "halflin/model/decode.h"
#include "halflin/ops/encode.h"
#include "halflin/ops/matvec.h"
#include "tests/model/decode_testing.h"
#include "tests/random_blocks.h"

namespace halflin {
namespace {

// A Llama of random weights in one format, as wide as every format allows, with GGUF's order of q
// and k.
Model random_model(ThreadPool& pool, DType dtype) {
  Checkpoint checkpoint;
  checkpoint.path = "random";
  Config& config = checkpoint.architecture.config;
  config.family = "llama";
  config.layers = 2;
  config.d_model = 256;
  config.d_mlp = 512;
  config.vocab = 70;
  config.max_positions = 64;
  config.norm = NormKind::kRmsNorm;
  config.activation = Activation::kSilu;
  config.gated_mlp = true;
  config.tied_head = true;
  config.attention = {.heads = 4, .kv_heads = 2, .head_dim = 64, .scale = 0.125f};
  config.rope.dims = 64;
  for (int i = 0; i < 32; ++i) {
    config.rope.frequencies.push_back(std::pow(1e-4f, static_cast<float>(i) / 32.f));
  }
  TensorLayout& layout = checkpoint.architecture.layout;
  layout.interleaved_rope = true;
  TensorNames& names = layout.names;
  names.embedding = "embedding";
  names.final_norm = "norm";
  names.attention_norm = "{}.norm";
  names.mlp_norm = "{}.norm2";
  names.q = "{}.q";
  names.k = "{}.k";
  names.v = "{}.v";
  names.attention_out = "{}.o";
  names.gate = "{}.gate";
  names.up = "{}.up";
  names.down = "{}.down";
  static std::deque<std::vector<std::byte>> memory;  // for as long as models point into it
  Random random(7);
  const auto add = [&](const std::string& name, DType format, std::vector<size_t> shape) {
    TensorInfo tensor;
    tensor.name = name + ".weight";
    tensor.dtype = format;
    tensor.shape = shape;
    tensor.file = "random";
    memory.emplace_back(tensor.elements() / dtype_block_elements(format) *
                        dtype_block_bytes(format));
    fill_random_blocks(format, memory.back(), shape.size() == 1 ? 1.f : 0.06f, random);
    tensor.bytes = memory.back();
    checkpoint.file.tensors[tensor.name] = tensor;
  };
  const size_t d = config.d_model;
  add("embedding", dtype, {config.vocab, d});
  add("norm", DType::kF32, {d});
  for (size_t l = 0; l < config.layers; ++l) {
    const auto named = [&](const char* name) { return fmt::format("{}.{}", l, name); };
    add(named("norm"), DType::kF32, {d});
    add(named("norm2"), DType::kF32, {d});
    add(named("q"), dtype, {256, d});
    add(named("k"), dtype, {128, d});
    add(named("v"), dtype, {128, d});
    add(named("o"), dtype, {d, 256});
    add(named("gate"), dtype, {config.d_mlp, d});
    add(named("up"), dtype, {config.d_mlp, d});
    add(named("down"), dtype, {d, config.d_mlp});
  }
  return load_model(pool, std::move(checkpoint), Precision::kF32, 24);
}

std::vector<int32_t> some_ids() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.push_back(i * 37 % 70);
  return ids;
}

class DecodeFormat : public testing::TestWithParam<DType> {};

TEST_P(DecodeFormat, ReadsItAsStored) {
  ThreadPool pool(2);
  const std::vector<int32_t> ids = some_ids();
  const Reference want = forward(pool, random_model(pool, GetParam()), ids, {});
  Decoder exact(pool, random_model(pool, GetParam()), {}, {.exact = true});
  Decoder stored(pool, random_model(pool, GetParam()));
  double error = 0, size = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto logits = want.logits.view().row_span(t);
    EXPECT_LT(difference(logits, exact.step(ids[t])), 2e-5) << t;
    const auto found = stored.step(ids[t]);
    for (size_t v = 0; v < logits.size(); ++v) {
      error += std::pow(logits[v] - found[v], 2);
      size += std::pow(logits[v], 2);
    }
  }
  // Activations of 8 bits, in formats without a kernel of their own also weights; else nothing but
  // the cache rounds.
  const bool rounds = dtype_block_elements(GetParam()) > 1;
  EXPECT_LT(std::sqrt(error / size), !rounds ? 1e-3 : has_matvec(GetParam()) ? 0.05 : 0.08);
  const bool direct = has_matvec(GetParam());
  const std::string name(dtype_name(GetParam()));
  EXPECT_EQ(stored.formats(),
            std::vector<std::string>{"15 x " + name + (direct ? "" : ", read as Q8_0")});
  EXPECT_EQ(stored.memory().converted != 0, !direct);
  // The prompt's products differ from single tokens' by no more.
  stored.rewind(0);
  EXPECT_LT(difference(want.logits.view().row_span(19), stored.prefill(ids)), 0.03);
}

TEST_P(DecodeFormat, CheapPathsAreReadLikeTheModel) {
  ThreadPool pool(2);
  const std::vector<int32_t> ids = some_ids();
  const auto make = [&] {
    Model model = random_model(pool, GetParam());
    Random random(5);
    std::vector<MlpPath> paths(2);
    for (MlpPath& path : paths) {
      auto linear = std::make_shared<CheapPath>();
      linear->affine = random_linear(random, 256, 256, Precision::kF32);
      path.options.push_back({linear, std::nullopt});
    }
    return std::pair(std::move(model), std::move(paths));
  };
  auto [model, paths] = make();
  const Reference want = forward(pool, model, ids, paths);
  Decoder decoder(pool, std::move(model), paths);
  for (size_t t = 0; t < ids.size(); ++t) {
    EXPECT_LT(difference(want.logits.view().row_span(t), decoder.step(ids[t])), 0.15) << t;
  }
  const size_t routed = decoder.bytes_read();
  decoder.use_paths(false);
  decoder.rewind(ids.size() - 1);
  decoder.step(ids.back());
  // 2 x 512 x 256 weights and 256 x 512 more, instead of 256 x 256 of at least 8 bits, in each of
  // two layers.
  const auto bytes = [](DType format, size_t elements) {
    return elements / dtype_block_elements(format) * dtype_block_bytes(format);
  };
  const DType mlp = has_matvec(GetParam()) ? GetParam() : DType::kQ8_0;
  const DType fitted = dtype_block_elements(mlp) == 1 ? mlp : DType::kQ8_0;
  EXPECT_EQ(decoder.bytes_read() - routed,
            2 * (bytes(mlp, 3 * 512 * 256) - bytes(fitted, 256 * 256)));
}

// Kept neurons, which the file's format holds as they are, stay in it; whatever else a path has is
// rounded to 8 bits at least.
TEST(Decoder, WhatWasFittedIsNotRoundedToFourBits) {
  ThreadPool pool(2);
  const std::vector<int32_t> ids = some_ids();
  const size_t d = 256, kept = 64;
  const auto bytes_read = [&](DType format, bool own) {
    Random random(6);
    const auto matrix = [&](size_t out, size_t in, bool stored) {
      Matrix<float> weight = random_linear(random, in, out, Precision::kF32).weight();
      std::vector<std::byte> bytes(in / 32 * dtype_block_bytes(format));
      for (size_t r = 0; stored && r < out; ++r) {
        encode_row(format, weight.row(r), in, bytes.data());
        read_f32({"row", format, {in}, bytes, "random"}, 0, weight.view().row_span(r));
      }
      return Linear(weight.view(), /*in_by_out=*/false, {}, Precision::kF32);
    };
    Model model = random_model(pool, format);
    auto narrow = std::make_shared<Mlp>();
    narrow->activation = model.config.activation;
    narrow->gate = matrix(kept, d, own);
    narrow->up = matrix(kept, d, own);
    narrow->down = matrix(d, kept, /*stored=*/false);
    auto path = std::make_shared<CheapPath>();
    path->narrow = narrow;
    const std::vector<MlpPath> paths(2, MlpPath{{{path, std::nullopt}}});
    const Reference want = forward(pool, model, ids, paths);
    Decoder decoder(pool, std::move(model), paths);
    decoder.prefill(std::span(ids).first(ids.size() - 1));
    EXPECT_LT(difference(want.logits.view().row_span(ids.size() - 1), decoder.step(ids.back())),
              0.05);
    return decoder.bytes_read();
  };
  for (const DType format : {DType::kQ4_0, DType::kQ4_1}) {
    const size_t blocks = 2 * 2 * kept * d / 32;  // of gates and ups of two layers
    EXPECT_EQ(bytes_read(format, false) - bytes_read(format, true),
              blocks * (dtype_block_bytes(DType::kQ8_0) - dtype_block_bytes(format)))
        << dtype_name(format);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DecodeFormat,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                                         DType::kQ6_K),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// Rounding weights to blocks of 32, and activations with them, moves logits by a small share.
TEST(Decoder, QuantisesFloatWeights) {
  ThreadPool pool(2);
  std::vector<std::string> formats;
  const auto run = [&](Quantize quantize) {
    Decoder decoder(pool, random_model(pool, DType::kF32), {}, {.quantize = quantize});
    std::vector<float> logits;
    for (const int32_t id : some_ids()) {
      const auto step = decoder.step(id);
      logits.assign(step.begin(), step.end());
    }
    formats = decoder.formats();
    return logits;
  };
  const std::vector<float> want = run(Quantize::kNone);
  const double q8 = difference(want, run(Quantize::kQ8_0));
  EXPECT_GT(q8, 0.0);
  EXPECT_LT(q8, 0.03);
  EXPECT_EQ(formats, std::vector<std::string>{"15 x F32, read as Q8_0"});
  const double q4 = difference(want, run(Quantize::kQ4_0));
  EXPECT_GT(q4, q8);
  EXPECT_LT(q4, 0.3);
  // The head stays in 8 bits.
  EXPECT_EQ(formats, (std::vector<std::string>{"14 x F32, read as Q4_0", "1 x F32, read as Q8_0"}));
}

}  // namespace
}  // namespace halflin
