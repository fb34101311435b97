// The decoder against the batch forward pass, on tiny random checkpoints of every family.
#include "halflin/model/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/model/forward.h"
#include "halflin/ops/matvec.h"
#include "tests/random_blocks.h"
#include "tests/smollm2.h"

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

// Logits of every position, [T, vocab], and the routes, [T, layers].
struct Reference {
  Matrix<float> logits;
  Matrix<uint8_t> routes;
};
Reference forward(ThreadPool& pool, const Model& model, std::span<const int32_t> ids,
                  const std::vector<MlpPath>& paths) {
  Batch batch;
  batch.add(ids);
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), model.config.d_model);
  Reference reference{Matrix<float>(batch.rows(), model.config.vocab),
                      Matrix<uint8_t>(batch.rows(), model.config.layers)};
  embed(model, batch, residual.view());
  for (size_t l = 0; l < model.config.layers; ++l) {
    const Operand x = attention_step(pool, model, l, batch.offsets, residual.view(), workspace);
    std::vector<uint8_t> route(ids.size());
    apply_path(pool, model.layers[l].mlp, paths.empty() ? MlpPath() : paths[l], x, true,
               residual.view(), workspace.mlp, route);
    for (size_t t = 0; t < ids.size(); ++t) reference.routes(t, l) = route[t];
  }
  final_logits(pool, model, residual.view(), workspace, reference.logits.view());
  return reference;
}

// Largest difference as a share of the expected values' range.
double difference(std::span<const float> expected, std::span<const float> found) {
  EXPECT_EQ(expected.size(), found.size());
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    most = std::max<double>(most, std::abs(expected[i] - found[i]));
  }
  return most / (*high - *low);
}

Linear random_linear(Random& random, size_t in, size_t out, Precision precision,
                     bool with_bias = true) {
  Matrix<float> weight(out, in);
  for (float& v : weight.span()) v = 0.3f * static_cast<float>(random.normal());
  std::vector<float> bias(with_bias ? out : 0);
  for (float& v : bias) v = 0.1f * static_cast<float>(random.normal());
  return Linear(weight.view(), false, bias, precision);
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
  // 2 x 512 x 256 weights and 256 x 512 more, instead of 256 x 256, in each of two layers.
  const double saved = static_cast<double>(decoder.bytes_read() - routed) / (2 * 5 * 256 * 256);
  EXPECT_GT(saved, 0.5);
  EXPECT_LT(saved, 4.01);
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

// tests/reference/make_generate_fixtures.py has transformers' words for these.
TEST(Decoder, ContinuesLikeTransformers) {
  if (const std::string why = smollm2_missing(); !why.empty()) GTEST_SKIP() << why;
  const std::string path = HALFLIN_FIXTURES "/generate/smollm2.json";
  ThreadPool pool(available_threads());
  Decoder decoder(pool, load_model(pool, read_checkpoint(smollm2_path()), Precision::kF32, 512), {},
                  {.exact = true});
  for (const auto& entry : parse_json(read_file(path), path)) {
    const auto prompt = entry.at("prompt").get<std::vector<int32_t>>();
    const auto want = entry.at("continuation").get<std::vector<int32_t>>();
    ASSERT_EQ(want.size(), 200u);
    decoder.rewind(0);
    std::span<const float> logits = decoder.prefill(prompt);
    std::vector<int32_t> found;
    for (size_t i = 0; i < want.size(); ++i) {
      found.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      logits = decoder.step(found.back());
    }
    EXPECT_EQ(found, want);
  }
}

// Reading Q4_1 with activations of 8 bits instead of dequantised weights: 0.062 of the logits'
// spread (llama.cpp: 0.074), 0.012 nats of loss on WikiText.
TEST(Decoder, QuantisedActivationsAreClose) {
  if (const std::string why = smollm2_missing(); !why.empty()) GTEST_SKIP() << why;
  const std::string path = HALFLIN_FIXTURES "/generate/smollm2.json";
  const auto ids =
      parse_json(read_file(path), path)[0].at("continuation").get<std::vector<int32_t>>();
  ThreadPool pool(available_threads());
  const auto load = [&] {
    return load_model(pool, read_checkpoint(smollm2_path()), Precision::kF32, 64);
  };
  Decoder exact(pool, load(), {}, {.exact = true});
  Decoder stored(pool, load());
  double error = 0, spread = 0;
  for (size_t t = 0; t < 32; ++t) {
    const auto want = exact.step(ids[t]);
    const auto found = stored.step(ids[t]);
    double mean = 0;
    for (const float v : want) mean += v;
    mean /= static_cast<double>(want.size());
    for (size_t v = 0; v < want.size(); ++v) {
      error += std::pow(found[v] - want[v], 2);
      spread += std::pow(want[v] - mean, 2);
    }
  }
  RecordProperty("relative_rms", std::to_string(std::sqrt(error / spread)));
  EXPECT_LT(std::sqrt(error / spread), 0.08);
}

}  // namespace
}  // namespace halflin
