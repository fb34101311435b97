#include "halflin/analyze/texts.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "halflin/base/error.h"

namespace halflin {
namespace {

std::vector<int32_t> counting(int32_t first, size_t count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AnalysisTexts, AreDisjointAndKnowTheirRows) {
  const AnalysisTexts texts =
      make_analysis_texts(counting(0, 100), counting(1000, 100), 8, std::nullopt, 16, 40);
  ASSERT_EQ(texts.fit.size(), 2u);
  ASSERT_EQ(texts.a.windows(), 5u);
  EXPECT_EQ(texts.a.train_windows, 2u);
  EXPECT_EQ(texts.a.rows(), 35u);  // seven predictions a window
  EXPECT_EQ(texts.a.train_rows, 14u);
  EXPECT_EQ(texts.a.test_windows(), 3u);
  EXPECT_EQ(texts.fit.back().batch.ids.back(), 15);
  EXPECT_EQ(texts.a.input.front(), 16);
  EXPECT_EQ(texts.b.input.front(), 1000);
  for (size_t t = 0; t < texts.a.rows(); ++t) {
    EXPECT_EQ(texts.a.target[t], texts.a.input[t] + 1);
    EXPECT_EQ(texts.a.input[t],
              static_cast<int32_t>(16 + 8 * texts.a.window[t] + texts.a.position[t]));
    EXPECT_EQ(t < texts.a.train_rows, texts.a.window[t] < texts.a.train_windows);
  }
  EXPECT_EQ(texts.frequency.size(), 100u);
  EXPECT_EQ(texts.description.at("a").at("test"), nlohmann::json({4, 7}));
  EXPECT_EQ(first_rows(texts.a), (std::vector<size_t>{0, 7, 14, 21, 28, 35}));
}

TEST(AnalysisTexts, BeginWithBosWhereAsked) {
  const AnalysisTexts texts =
      make_analysis_texts(counting(0, 100), counting(1000, 100), 8, 7777, 7, 32);
  EXPECT_EQ(texts.a.input.front(), 7777);
  EXPECT_EQ(texts.a.target.front(), 7);
}

TEST(AnalysisTexts, RefuseWhatMeansNothing) {
  const auto make = [](size_t a, size_t b, int32_t first_b, size_t tokens) {
    return message_of([&] {
      make_analysis_texts(counting(0, a), counting(first_b, b), 8, std::nullopt, 16, tokens);
    });
  };
  EXPECT_EQ(make(48, 32, 1000, 32), "");
  EXPECT_EQ(make(47, 32, 1000, 32),
            "text A (--text) is too short: 48 tokens are needed (6 windows of 8), found 40");
  EXPECT_EQ(make(48, 31, 1000, 32),
            "text B (--second-text) is too short: 32 tokens are needed (4 windows of 8), found 24");
  EXPECT_EQ(make(48, 32, 1000, 24),
            "--tokens 24: at least four windows of 8 are needed, 32 tokens");
  EXPECT_EQ(make(48, 48, 16, 32),
            "4 of 4 windows of text B (--second-text) are in text A too: they must be different");
  for (const size_t fit_tokens : {size_t{0}, std::numeric_limits<size_t>::max()}) {
    EXPECT_THROW(
        make_analysis_texts(counting(0, 48), counting(0, 48), 8, std::nullopt, fit_tokens, 32),
        UsageError);
  }
}

}  // namespace
}  // namespace halflin
