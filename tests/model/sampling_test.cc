#include "halflin/model/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using Ids = std::vector<int32_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();

// Probabilities 1/2, 1/8, 1/4, 1/8.
std::vector<float> four_logits() {
  return {std::log(0.5f), std::log(0.125f), std::log(0.25f), std::log(0.125f)};
}

void expect_candidates(const SamplingOptions& options, const Ids& ids,
                       const std::vector<double>& probabilities) {
  Sampler sampler(options);
  const std::vector<float> logits = four_logits();
  const auto found = sampler.candidates(logits, {});
  ASSERT_EQ(found.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(found[i].id, ids[i]) << i;
    EXPECT_NEAR(found[i].probability, probabilities[i], 1e-6) << i;
  }
}

TEST(Sampling, CutsAndScalesAsComputedByHand) {
  SamplingOptions options;
  options.temperature = 1;
  expect_candidates(options, {0, 2, 1, 3}, {0.5, 0.25, 0.125, 0.125});
  options.temperature = 0.5;  // squares: 16, 4, 1, 1 of 22
  expect_candidates(options, {0, 2, 1, 3}, {16. / 22, 4. / 22, 1. / 22, 1. / 22});
  options.temperature = 1;
  options.top_k = 3;  // of the equal ones the lowest id
  expect_candidates(options, {0, 2, 1}, {4. / 7, 2. / 7, 1. / 7});
  options.top_k = 0;
  options.top_p = 0.7;
  expect_candidates(options, {0, 2}, {2. / 3, 1. / 3});
  options.top_p = 0.3;
  expect_candidates(options, {0}, {1});
  options.top_p = 0.8;
  expect_candidates(options, {0, 2, 1}, {4. / 7, 2. / 7, 1. / 7});
  options.top_p = 1;
  options.min_p = 0.3;
  expect_candidates(options, {0, 2}, {2. / 3, 1. / 3});
  options.temperature = 1e-6;  // no overflow
  options.min_p = 0;
  expect_candidates(options, {0}, {1});
  options.temperature = 0;
  expect_candidates(options, {0}, {1});
}

TEST(Sampling, TopPIsOfWhatTopKLeft) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 3;    // 4/7, 2/7, 1/7
  options.top_p = 0.8;  // 4/7 + 2/7 = 0.857; of all four it would take three
  expect_candidates(options, {0, 2}, {2. / 3, 1. / 3});
}

TEST(Sampling, CutsLargeVocabulariesAsSmallOnes) {
  // 3000 tokens whose probability falls slowly: the share is reached beyond the first block sorted.
  std::vector<float> logits(3000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[(i * 1237) % logits.size()] = -0.001f * static_cast<float>(i);
  }
  SamplingOptions options;
  options.temperature = 1;
  options.top_p = 0.5;
  Sampler sampler(options);
  const auto found = sampler.candidates(logits, {});
  // sum r^i over i < n reaches half of the sum over i < 3000, r = e^-0.001.
  const double r = std::exp(-0.001);
  const double n = std::log(1 - 0.5 * (1 - std::pow(r, 3000))) / std::log(r);
  EXPECT_NEAR(static_cast<double>(found.size()), n, 1.0);
  EXPECT_EQ(found[1].id, 1237);
  EXPECT_EQ(found[700].id, 700 * 1237 % 3000);
}

TEST(Sampling, GreedyTakesTheLargestAndOfEqualsTheFirst) {
  Sampler sampler({});
  EXPECT_EQ(sampler.next(std::vector<float>{0, 3, -1, 3}, {}), 1);
  EXPECT_EQ(sampler.next(std::vector<float>{-kInf, -kInf, -5}, {}), 2);
}

TEST(Sampling, PenalisesWhatWasSeenInTheWindow) {
  SamplingOptions options;
  options.repetition_penalty = 2;
  options.repetition_window = 2;
  Sampler sampler(options);
  const std::vector<float> logits = {4, 3, -1, -1.5};
  EXPECT_EQ(sampler.next(logits, Ids{0, 1, 1}), 0);  // 0 is out of the window
  EXPECT_EQ(sampler.next(logits, Ids{1, 0, 0}), 1);  // 2 < 3, not halved twice
  EXPECT_EQ(sampler.next(logits, Ids{0, 1}), 0);     // 2 > 1.5
  EXPECT_EQ(sampler.next(logits, Ids{99, -1}), 0);   // not in the vocabulary
  const std::vector<float> negative = {-9, -8, -1, -1.5};
  EXPECT_EQ(sampler.next(negative, Ids{2}), 3);  // -2 < -1.5
  options.repetition_window = 0;
  EXPECT_EQ(Sampler(options).next(logits, Ids{0, 1, 1}), 0);
  EXPECT_EQ(Sampler(options).next(logits, Ids{0, 2, 2}), 1);
}

TEST(Sampling, DrawsAsOftenAsProbable) {
  SamplingOptions options;
  options.temperature = 1;
  options.seed = 7;
  Sampler sampler(options);
  const std::vector<float> logits = four_logits();
  std::map<int32_t, int> drawn;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++drawn[sampler.next(logits, {})];
  const std::vector<double> expected = {0.5, 0.125, 0.25, 0.125};
  for (int32_t id = 0; id < 4; ++id) {
    const double p = expected[static_cast<size_t>(id)];
    // Five standard deviations.
    EXPECT_NEAR(drawn[id], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << id;
  }
}

TEST(Sampling, SameSeedSameDraws) {
  const auto draws = [](uint64_t seed) {
    SamplingOptions options;
    options.temperature = 1;
    options.seed = seed;
    Sampler sampler(options);
    Ids ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.next(four_logits(), ids));
    return ids;
  };
  EXPECT_EQ(draws(3), draws(3));
  EXPECT_NE(draws(3), draws(4));
}

TEST(Sampling, RefusesLogitsThatAreNone) {
  for (const double temperature : {0.0, 1.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    Sampler sampler(options);
    const auto next = [&](std::vector<float> logits) {
      return error_of([&] { sampler.next(logits, {}); });
    };
    EXPECT_CONTAINS(next({0, 1, NAN}), "logit of token 2 is nan");
    EXPECT_CONTAINS(next({0, kInf}), "logit of token 1 is inf");
    EXPECT_CONTAINS(next({-kInf, -kInf}), "all of the model's 2 logits are -inf");
  }
}

TEST(Sampling, RefusesOptionsThatMeanNothing) {
  const auto refused = [](auto change) {
    SamplingOptions options;
    change(options);
    try {
      Sampler{options};
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_CONTAINS(refused([](auto& o) { o.temperature = -1; }), "temperature");
  EXPECT_CONTAINS(refused([](auto& o) { o.temperature = NAN; }), "temperature");
  EXPECT_CONTAINS(refused([](auto& o) { o.top_p = 0; }), "top-p");
  EXPECT_CONTAINS(refused([](auto& o) { o.top_p = 1.5; }), "top-p");
  EXPECT_CONTAINS(refused([](auto& o) { o.min_p = -0.1; }), "min-p");
  EXPECT_CONTAINS(refused([](auto& o) { o.repetition_penalty = 0; }), "repetition penalty");
  EXPECT_CONTAINS(refused([](auto& o) { o.repetition_penalty = kInf; }), "repetition penalty");
}

TEST(Sampling, LeavesWhatTransformersLeaves) {
  const auto fixture =
      nlohmann::json::parse(read_file(std::string(HALFLIN_FIXTURES) + "/generate/sampling.json"));
  const auto logits = fixture.at("logits").get<std::vector<float>>();
  const auto history = fixture.at("history").get<Ids>();
  for (const auto& c : fixture.at("cases")) {
    SamplingOptions options;
    options.temperature = c.at("temperature");
    options.top_k = c.at("top_k");
    options.top_p = c.at("top_p");
    options.min_p = c.at("min_p");
    options.repetition_penalty = c.at("repetition_penalty");
    Sampler sampler(options);
    const auto found = sampler.candidates(logits, history);
    Ids ids;
    for (const Candidate& candidate : found) ids.push_back(candidate.id);
    ASSERT_EQ(ids, c.at("ids").get<Ids>()) << c.dump();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_NEAR(found[i].probability, c.at("probabilities")[i].get<double>(), 2e-6) << c.dump();
    }
  }
}

}  // namespace
}  // namespace halflin
