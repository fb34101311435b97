// Which text fits, trains, calibrates and tests. Splits never overlap, unless the paper's protocol
// is asked for, whose gate and evaluation lines do.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/io/tokenizer.h"
#include "halflin/measure/windows.h"

namespace halflin {

// Sequences that run together, and which of their rows are data.
struct Sample {
  Batch batch;
  std::vector<uint8_t> use;  // [rows] 1: this row takes part in fitting
};

struct Splits {
  std::vector<Sample> fit;          // surrogates
  std::vector<Sample> train;        // gates
  std::vector<Sample> calibration;  // thresholds
  std::vector<Sample> test;         // evaluated once
  std::vector<Sample> harm;         // harm in nats, predicted
  std::vector<WindowRange> rest;    // windows that are in none of these
  nlohmann::json description;       // for the result file
};

// Sizes in tokens, rounded up to whole windows; a range of windows, where given, replaces its size.
struct SplitSizes {
  size_t fit_tokens = 10000;
  size_t train_tokens = 25000;
  size_t calibration_tokens = 6000;
  size_t eval_tokens = 12000;
  size_t harm_tokens = 0;  // none, unless a range is given
  std::optional<std::string> fit_windows{}, train_windows{}, calibration_windows{}, eval_windows{},
      harm_windows{};
  bool needs_gates = true;  // without gates, train and calibration are empty
};

// Whole windows with context. Splits without a range are laid, in order, into the first windows
// that are free. Throws Error where ranges overlap, or where the text is too short (saying how many
// tokens are needed).
Splits make_window_splits(const Windows& windows, const SplitSizes& sizes);

// The paper's official script: each line that is not blank, with its newline, is a sequence without
// context. Lines 0-499 fit (cut at 512 tokens, the first fit_tokens), 1000-2999 train (cut at 256,
// at least 4 tokens, the first train_tokens predicted positions), 2000-2499 test (cut at 512, until
// eval_tokens predictions are reached). Gates and evaluation share lines, as they do there.
Splits make_paper_splits(const Tokenizer& tokenizer, std::string_view text, size_t max_positions,
                         const SplitSizes& sizes, const std::string& name = "text");

}  // namespace halflin
