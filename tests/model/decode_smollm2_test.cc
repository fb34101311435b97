// The decoder on SmolLM2. Skipped, in words, where the model is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/model/decode.h"
#include "tests/smollm2.h"

namespace halflin {
namespace {

// tests/reference/make_generate_fixtures.py has transformers' words for these.
TEST(DecoderOnSmolLm2, ContinuesLikeTransformers) {
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
TEST(DecoderOnSmolLm2, QuantisedActivationsAreClose) {
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
