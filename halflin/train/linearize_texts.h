// Which text a linearisation fits, trains and tests on: disjoint by construction.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halflin/measure/windows.h"

namespace halflin {

struct HeldOutText {
  std::string name;  // "test", "second"
  std::vector<Batch> windows;
};
struct LinearizeTexts {
  Windows train;
  std::vector<Batch> fit;          // surrogates
  std::vector<Batch> calibration;  // the order "cheapest"; may be empty
  // Decides nothing. The first is measured after each stage, all of them at the end.
  std::vector<HeldOutText> held_out;
  nlohmann::json description;  // for the result file
};

// Tokens; rounded up to whole windows.
struct LinearizeSizes {
  size_t fit = 10000;
  size_t calibration = 0;
  size_t test = 24000;  // of each held-out text
  size_t eval_window = 512;
  size_t train_window = 128;
  size_t train_windows = 1;  // at the least
};

// The ids of a text, and what to call it in messages.
struct TokenizedText {
  std::string name;
  std::vector<int32_t> ids;
};

// Cuts the training text, from its beginning, into fit, calibration and training, and, without a
// test text of its own, test at its end. Of a text of its own the first windows are taken, as many
// as `test` asks for or as there are. Throws Error, saying how many tokens are needed, where a text
// is too short.
LinearizeTexts make_linearize_texts(const TokenizedText& train,
                                    const std::optional<TokenizedText>& test,
                                    const std::optional<TokenizedText>& second,
                                    std::optional<int32_t> bos, const LinearizeSizes& sizes);

}  // namespace halflin
