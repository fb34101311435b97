#include "halflin/measure/splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "halflin/base/error.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

Windows numbered(size_t tokens, size_t window) {
  std::vector<int32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), 0);
  return Windows(std::move(ids), window, std::nullopt);
}

TEST(Windows, AreConsecutiveAndDropTheRest) {
  const Windows windows = numbered(107, 10);
  EXPECT_EQ(windows.count(), 10u);
  EXPECT_EQ(windows.batch(3).ids.front(), 30);
  EXPECT_EQ(windows.batch(9).ids.back(), 99);
}

TEST(Windows, BosTakesOnePlaceAndLosesNoText) {
  std::vector<int32_t> ids(27);
  std::iota(ids.begin(), ids.end(), 0);
  const Windows windows(std::move(ids), 10, 500);
  EXPECT_EQ(windows.count(), 3u);
  const Batch second = windows.batch(1);
  EXPECT_EQ(second.ids, (std::vector<int32_t>{500, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(second.offsets, (std::vector<size_t>{0, 10}));
}

TEST(Windows, RangesAreHalfOpen) {
  EXPECT_EQ(parse_window_range("90:106", 200, 512).count(), 16u);
  EXPECT_EQ(parse_window_range(":", 200, 512).end, 200u);
  EXPECT_EQ(parse_window_range("5:", 200, 512).begin, 5u);
  for (const char* bad :
       {"", "5", "a:b", "5:5", "7:3", "1:2:3", "-1:4", "1:99999999999999999999"}) {
    EXPECT_THROW(parse_window_range(bad, 200, 512), UsageError) << bad;
  }
  EXPECT_CONTAINS(error_of([] { parse_window_range("190:210", 200, 512); }),
                  "needs 107520 tokens of text, found 200 whole windows of 512");
}

// Every token of every split.
std::multiset<int32_t> tokens_of(const Splits& splits) {
  std::multiset<int32_t> tokens;
  for (const auto* split : {&splits.fit, &splits.train, &splits.calibration, &splits.test}) {
    for (const Sample& sample : *split) {
      tokens.insert(sample.batch.ids.begin(), sample.batch.ids.end());
    }
  }
  return tokens;
}

TEST(WindowSplits, NeverShareAToken) {
  const Windows windows = numbered(3000, 16);
  SplitSizes sizes{
      .fit_tokens = 500, .train_tokens = 700, .calibration_tokens = 100, .eval_tokens = 300};
  for (const char* eval : {"0:20", "40:59", "100:119", "168:187"}) {
    sizes.eval_windows = eval;
    const Splits splits = make_window_splits(windows, sizes);
    const std::multiset<int32_t> tokens = tokens_of(splits);
    EXPECT_EQ(tokens.size(), std::set<int32_t>(tokens.begin(), tokens.end()).size()) << eval;
    EXPECT_EQ(splits.fit.size(), 32u);  // rounded up to whole windows
    EXPECT_EQ(splits.train.size(), 44u);
    EXPECT_EQ(splits.calibration.size(), 7u);
  }
}

TEST(WindowSplits, RowsThatPredictNothingDoNotTrainGates) {
  const Splits splits = make_window_splits(
      numbered(2000, 16),
      {.fit_tokens = 16, .train_tokens = 16, .calibration_tokens = 16, .eval_tokens = 16});
  EXPECT_EQ(splits.fit[0].use.back(), 1);
  EXPECT_EQ(splits.train[0].use.back(), 0);
}

TEST(WindowSplits, RefuseOverlapAndShortText) {
  const Windows windows = numbered(1600, 16);
  SplitSizes sizes{
      .fit_tokens = 160, .train_tokens = 160, .calibration_tokens = 160, .eval_tokens = 160};
  sizes.fit_windows = "0:30";
  sizes.eval_windows = "29:40";
  EXPECT_CONTAINS(error_of([&] { make_window_splits(windows, sizes); }),
                  "--fit-windows 0:30 overlaps --eval-windows 29:40");
  sizes = {.fit_tokens = 1000, .train_tokens = 1000, .calibration_tokens = 16, .eval_tokens = 16};
  EXPECT_CONTAINS(error_of([&] { make_window_splits(windows, sizes); }),
                  "2048 tokens are needed (128 windows of 16), found 1600");
  for (const size_t tokens : {size_t{0}, std::numeric_limits<size_t>::max()}) {
    for (const auto size : {&SplitSizes::fit_tokens, &SplitSizes::train_tokens,
                            &SplitSizes::calibration_tokens, &SplitSizes::eval_tokens}) {
      sizes = {.fit_tokens = 16, .train_tokens = 16, .calibration_tokens = 16, .eval_tokens = 16};
      sizes.*size = tokens;
      EXPECT_THROW(make_window_splits(windows, sizes), UsageError) << tokens;
    }
  }
}

TEST(WindowSplits, WithoutGatesOnlyFitAndTest) {
  const Splits splits = make_window_splits(
      numbered(640, 16), {.fit_tokens = 320, .eval_tokens = 320, .needs_gates = false});
  EXPECT_TRUE(splits.train.empty());
  EXPECT_TRUE(splits.calibration.empty());
  EXPECT_EQ(splits.fit.size() + splits.test.size(), 40u);
}

// A tokenizer of single letters, which every GGUF fixture carries.
Tokenizer letters() {
  const std::string path = HALFLIN_FIXTURES "/models/gpt2_gguf/model.gguf";
  return Tokenizer::from_gguf(open_gguf(path).metadata, path);
}

TEST(PaperSplits, TakeTheOfficialScriptsLines) {
  // Line i is i % 7 + 1 letters; every fifth line is blank; line numbers count blank lines.
  std::string text;
  for (size_t i = 0; i < 3000; ++i) {
    text += i % 5 == 4 ? " \n" : std::string(i % 7 + 1, static_cast<char>('q' + i % 9)) + "\n";
  }
  const Tokenizer tokenizer = letters();
  const size_t newline = tokenizer.encode("q\n").size() - tokenizer.encode("q").size();
  const auto length = [&](size_t i) { return i % 7 + 1 + newline; };
  const SplitSizes sizes{.fit_tokens = 100, .train_tokens = 200, .eval_tokens = 300};
  const Splits splits = make_paper_splits(tokenizer, text, 1024, sizes);

  // Fit: lines of at least 2 tokens, the first 100 tokens; the last line is cut by its mask.
  size_t used = 0, rows = 0;
  for (const Sample& sample : splits.fit) {
    rows += sample.batch.rows();
    used += static_cast<size_t>(std::count(sample.use.begin(), sample.use.end(), 1));
  }
  size_t want_rows = 0;
  for (size_t i = 0; want_rows < 100; ++i) {
    if (i % 5 != 4 && length(i) >= 2) want_rows += length(i);
  }
  EXPECT_EQ(used, 100u);
  EXPECT_EQ(rows, want_rows);
  // Train: from line 1000, at least 4 tokens, predicted positions only.
  size_t first = 1000;
  while (first % 5 == 4 || length(first) < 4) ++first;
  EXPECT_EQ(splits.train[0].batch.offsets[1], length(first));
  EXPECT_EQ(splits.train[0].use[length(first) - 1], 0);
  // Test: whole lines from line 2000 until 300 predictions are reached.
  size_t predictions = 0, sequences = 0;
  for (const Sample& sample : splits.test) {
    predictions += sample.batch.rows() - sample.batch.sequences();
    sequences += sample.batch.sequences();
  }
  size_t want_predictions = 0, want_sequences = 0;
  for (size_t i = 2000; want_predictions < 300; ++i) {
    if (i % 5 == 4 || length(i) < 2) continue;
    want_predictions += length(i) - 1;
    ++want_sequences;
  }
  EXPECT_EQ(predictions, want_predictions);
  EXPECT_EQ(sequences, want_sequences);
}

TEST(PaperSplits, CutLongLinesAndRefuseShortTexts) {
  std::string text;
  for (size_t i = 0; i < 2500; ++i) text += std::string(700, 'q') + "\n";
  const Splits splits = make_paper_splits(
      letters(), text, 300, {.fit_tokens = 1000, .train_tokens = 1000, .eval_tokens = 1000});
  EXPECT_EQ(splits.fit[0].batch.offsets[1], 300u);    // the model's positions
  EXPECT_EQ(splits.train[0].batch.offsets[1], 256u);  // the script's cut
  EXPECT_CONTAINS(error_of([] { make_paper_splits(letters(), "one line\n", 300, {}); }),
                  "it needs 3000 lines");
}

}  // namespace
}  // namespace halflin
