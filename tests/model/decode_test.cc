// The decoder against the batch forward pass, on tiny random checkpoints of every family.
#include "halflin/model/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/measure/perplexity.h"
#include "halflin/model/forward.h"
#include "tests/model/decode_testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(HALFLIN_FIXTURES) / "models";

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kModels)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::erase(names, "llama_rope_dynamic");  // its ids are longer than its positions: refused
  std::sort(names.begin(), names.end());
  return names;
}

std::string model_path(const std::string& fixture) {
  for (const auto& entry : fs::directory_iterator(kModels / fixture)) {
    if (entry.path().extension() == ".gguf") return entry.path();
  }
  return kModels / fixture;
}

std::vector<int32_t> fixture_ids(const std::string& fixture) {
  const TensorFile file = open_safetensors(kModels / fixture / "expected.safetensors");
  std::vector<float> values(file.at("input_ids").elements());
  read_f32(file.at("input_ids"), 0, values);
  return std::vector<int32_t>(values.begin(), values.end());
}

Model load(ThreadPool& pool, const std::string& fixture, size_t window,
           Precision precision = Precision::kF32) {
  return load_model(pool, read_checkpoint(model_path(fixture)), precision, window);
}

// Of each kind of cheap path one, all but the last with a random gate.
std::vector<MlpPath> random_paths(const Model& model, uint64_t seed) {
  Random random(seed);
  const Config& config = model.config;
  const size_t d = config.d_model;
  const auto linear = [&](size_t in, size_t out) {
    return random_linear(random, in, out, model.precision);
  };
  std::vector<MlpPath> paths(config.layers);
  for (size_t l = 0; l < config.layers; ++l) {
    for (int kind = 0; kind < 4; ++kind) {
      auto path = std::make_shared<CheapPath>();
      if (kind == 0 || kind == 2) path->affine = linear(d, d);
      if (kind == 1) {
        path->low_rank_in = linear(d, 3);
        path->low_rank_out = linear(3, d);
      }
      if (kind == 2) {
        auto narrow = std::make_shared<Mlp>();
        narrow->activation = config.activation;
        if (config.gated_mlp) narrow->gate = linear(d, 5);
        narrow->up = linear(d, 5);
        narrow->down = linear(5, d);
        path->narrow = narrow;
      }
      if (kind == 3) path->constant.assign(d, 0.25f);
      PathOption option{path, std::nullopt};
      Gate gate;
      for (size_t i = 0; i < d; ++i) gate.weight.push_back(static_cast<float>(random.normal()));
      gate.threshold = 0.8f * std::sqrt(static_cast<float>(d));
      option.gate = gate;
      paths[l].options.push_back(option);
    }
  }
  paths.back().options.erase(paths.back().options.begin(), paths.back().options.begin() + 3);
  paths.back().options.front().gate.reset();  // the last layer: the constant for every token
  return paths;
}

class Decode : public testing::TestWithParam<std::string> {
 protected:
  ThreadPool pool_{2};
  std::vector<int32_t> ids_ = fixture_ids(GetParam());

  // Each prefix length, then single tokens, against the batch.
  void check(const std::vector<MlpPath>& paths, const DecodeOptions& options, double tolerance) {
    const Reference want = forward(pool_, load(pool_, GetParam(), ids_.size()), ids_, paths);
    Decoder decoder(pool_, load(pool_, GetParam(), ids_.size()), paths, options);
    for (const size_t prompt : {size_t{0}, size_t{1}, size_t{4}, ids_.size() - 1, ids_.size()}) {
      SCOPED_TRACE(fmt::format("prompt of {}", prompt));
      decoder.rewind(0);
      if (prompt != 0) {
        const auto found = decoder.prefill(std::span(ids_).first(prompt));
        ASSERT_EQ(decoder.position(), prompt);
        EXPECT_LT(difference(want.logits.view().row_span(prompt - 1), found), tolerance);
        ASSERT_EQ(decoder.routes().rows, prompt);
        for (size_t t = 0; t < prompt; ++t) {
          for (size_t l = 0; l < want.routes.cols(); ++l) {
            EXPECT_EQ(decoder.routes()(t, l), want.routes(t, l)) << t << " " << l;
          }
        }
      }
      for (size_t t = prompt; t < ids_.size(); ++t) {
        const auto found = decoder.step(ids_[t]);
        EXPECT_LT(difference(want.logits.view().row_span(t), found), tolerance) << t;
        ASSERT_EQ(decoder.routes().rows, 1u);
        for (size_t l = 0; l < want.routes.cols(); ++l) {
          EXPECT_EQ(decoder.routes()(0, l), want.routes(t, l)) << t << " " << l;
        }
      }
    }
  }
};

TEST_P(Decode, EqualsTheBatch) { check({}, {.exact = true}, 2e-5); }

TEST_P(Decode, ChunksEqualTheBatch) { check({}, {.exact = true, .chunk = 3}, 2e-5); }

TEST_P(Decode, AsStored) {
  // Beside weights of 16 bits the cache is float16.
  const TensorFile& file = load(pool_, GetParam(), 1).file;
  const bool small = std::any_of(file.tensors.begin(), file.tensors.end(), [](const auto& entry) {
    return entry.second.dtype != DType::kF32;
  });
  check({}, {}, small ? 1e-3 : 2e-5);
}

TEST_P(Decode, RoutesLikeTheBatch) {
  const Model model = load(pool_, GetParam(), ids_.size());
  check(random_paths(model, 3), {.exact = true, .chunk = 4}, 2e-5);
}

TEST_P(Decode, LossesAreTheBatchs) {
  Model model = load(pool_, GetParam(), ids_.size());
  const std::vector<MlpPath> paths = random_paths(model, 3);
  Batch batch;
  batch.add(ids_);
  Progress progress("", 0, /*quiet=*/true);
  const auto want = batch_losses(pool_, model, {&batch, 1}, paths, progress);
  Decoder decoder(pool_, std::move(model), paths, {.exact = true});
  for (int again = 0; again < 2; ++again) {
    const auto found = decoded_losses(decoder, {&batch, 1}, progress);
    ASSERT_EQ(found.size(), 1u);
    for (size_t t = 0; t < ids_.size(); ++t) EXPECT_NEAR(found[0][t], want[0][t], 1e-4) << t;
  }
}

TEST_P(Decode, ThreadsDoNotMatter) {
  std::vector<float> one;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Decoder decoder(pool, load(pool, GetParam(), ids_.size()), {}, {});
    decoder.prefill(std::span(ids_).first(3));
    std::vector<float> all;
    for (size_t t = 3; t < ids_.size(); ++t) {
      const auto logits = decoder.step(ids_[t]);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    if (threads == 1) one = all;
    EXPECT_EQ(all, one) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Decode, testing::ValuesIn(fixture_names()),
                         [](const auto& info) { return info.param; });

TEST(Decoder, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  Decoder decoder(pool, load(pool, "llama_gqa", 6));
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(decoder.context(), 6u);
  EXPECT_THROW(decoder.prefill({}), Error);
  EXPECT_THROW(decoder.prefill(ids), Error);
  EXPECT_THROW(decoder.prefill(std::vector<int32_t>{1, -1}), Error);
  EXPECT_THROW(decoder.step(static_cast<int32_t>(decoder.model().config.vocab)), Error);
  EXPECT_EQ(decoder.position(), 0u);  // nothing was appended
  decoder.prefill(std::span(ids).first(6));
  EXPECT_THROW(decoder.step(1), Error);
  EXPECT_THROW(decoder.rewind(7), Error);
  decoder.rewind(5);
  decoder.step(6);
  EXPECT_EQ(decoder.position(), 6u);
}

TEST(Decoder, RefusesPathsOfOtherShapes) {
  ThreadPool pool(1);
  const auto with = [&](const auto& change) {
    Model model = load(pool, "llama_gqa", 6);
    std::vector<MlpPath> paths = random_paths(model, 1);
    change(paths);
    Decoder(pool, std::move(model), paths);
  };
  EXPECT_NO_THROW(with([](auto&) {}));
  EXPECT_THROW(with([](auto& paths) { paths.pop_back(); }), Error);
  EXPECT_THROW(with([](auto& paths) { paths[0].options[0].path = nullptr; }), Error);
  EXPECT_THROW(with([](auto& paths) { paths[0].options[0].gate->weight.pop_back(); }), Error);
  EXPECT_THROW(with([](auto& paths) {
                 Random random(1);
                 auto path = std::make_shared<CheapPath>();
                 path->affine = random_linear(random, 5, 5, Precision::kF32);
                 paths[0].options[0].path = path;
               }),
               Error);
}

TEST(Decoder, CountsWhatItReads) {
  ThreadPool pool(1);
  const std::vector<int32_t> ids = fixture_ids("llama_gqa");
  Model model = load(pool, "llama_gqa", ids.size());
  auto linear = std::make_shared<CheapPath>();
  Random random(1);
  linear->affine =
      random_linear(random, model.config.d_model, model.config.d_model, Precision::kF32, false);
  const std::vector<MlpPath> paths(model.config.layers, MlpPath{{{linear, std::nullopt}}});
  const Config config = model.config;
  Decoder full(pool, load(pool, "llama_gqa", ids.size()));
  Decoder cheap(pool, std::move(model), paths);
  full.step(1);
  cheap.step(1);
  const size_t mlp = 3 * config.d_model * config.d_mlp * sizeof(float);
  const size_t affine = config.d_model * config.d_model * sizeof(float);
  EXPECT_EQ(full.bytes_read() - cheap.bytes_read(), config.layers * (mlp - affine));
  EXPECT_DOUBLE_EQ(full.flops() - cheap.flops(),
                   static_cast<double>(config.layers * (mlp - affine)) / 2);
  const size_t before = full.bytes_read();
  full.step(2);
  // One more position's keys and values, the latter padded.
  EXPECT_EQ(full.bytes_read() - before, config.layers * config.attention.kv_heads *
                                            (config.attention.head_dim + 16) * sizeof(float));
}

}  // namespace
}  // namespace halflin
