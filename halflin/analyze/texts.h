// analyze/: what a model's need for nonlinearity depends on: token or context, lists of tokens,
// surface features, clusters. The claims of arXiv 2603.03459, each with an interval.
//
// The two texts of an analysis, cut into windows with disjoint roles.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "halflin/measure/splits.h"

namespace halflin {

// The analysed windows of one text. A row is a token that predicts another; the last token of a
// window is none. Rows are in order of the text: those of the train windows, then the test windows.
struct AnalysisText {
  std::vector<Sample> samples;  // one window each
  size_t train_windows = 0;
  size_t train_rows = 0;
  std::vector<int32_t> input;      // [T] the token at the row, which a router sees
  std::vector<int32_t> target;     // [T] the token it predicts
  std::vector<uint32_t> window;    // [T] its window
  std::vector<uint32_t> position;  // [T] its place in the window

  size_t rows() const { return input.size(); }
  size_t windows() const { return samples.size(); }
  size_t test_rows() const { return rows() - train_rows; }
  size_t test_windows() const { return windows() - train_windows; }
};

struct AnalysisTexts {
  std::vector<Sample> fit;  // windows of text A that fit surrogates, and nothing else
  AnalysisText a, b;
  std::unordered_map<int32_t, size_t> frequency;  // of every token, in all of text A
  nlohmann::json description;                     // for the result file
};

// Cuts consecutive windows: text A's into fit, train and test, text B's into train and test, with
// `tokens` rounded up to whole windows, half of them train and half test. `bos` as Windows takes
// it. Throws Error where a text is too short (saying how many tokens are needed and found), or
// where text B repeats windows of text A; UsageError where `tokens` is under four windows.
AnalysisTexts make_analysis_texts(std::vector<int32_t> ids_a, std::vector<int32_t> ids_b,
                                  size_t window, std::optional<int32_t> bos, size_t fit_tokens,
                                  size_t tokens);

// Rows [first, first + count) of one sample are the rows of a window; `first` of each sample, and
// the total at the end. [windows + 1]
std::vector<size_t> first_rows(const AnalysisText& text);

}  // namespace halflin
