#include "halflin/train/linearize_texts.h"

#include <algorithm>

#include "halflin/base/error.h"

namespace halflin {

namespace {

size_t whole_windows(size_t tokens, size_t window) { return (tokens + window - 1) / window; }

std::vector<Batch> take(const Windows& windows, size_t begin, size_t end) {
  std::vector<Batch> batches;
  for (size_t w = begin; w < end; ++w) batches.push_back(windows.batch(w));
  return batches;
}

void add_own_text(const TokenizedText& text, const std::string& name, std::optional<int32_t> bos,
                  const LinearizeSizes& sizes, LinearizeTexts& made) {
  const Windows windows(text.ids, sizes.eval_window, bos, text.name);
  if (windows.count() == 0) {
    fail("{}: too short for one window of {} tokens", text.name, sizes.eval_window);
  }
  const size_t end = std::min(whole_windows(sizes.test, sizes.eval_window), windows.count());
  made.held_out.push_back({name, take(windows, 0, end)});
  made.description[name] = {{"of", text.name}, {"windows", {0, end}}};
}

}  // namespace

LinearizeTexts make_linearize_texts(const TokenizedText& train,
                                    const std::optional<TokenizedText>& test,
                                    const std::optional<TokenizedText>& second,
                                    std::optional<int32_t> bos, const LinearizeSizes& sizes) {
  const size_t window = sizes.eval_window;
  const size_t bos_tokens = bos ? 1 : 0;
  const size_t step = window - bos_tokens;  // tokens of text in a window
  const size_t available = train.ids.size() / step;
  const size_t fit = whole_windows(sizes.fit, window);
  const size_t calibration = whole_windows(sizes.calibration, window);
  const size_t tested = test ? 0 : whole_windows(sizes.test, window);
  const size_t least = sizes.train_windows * (sizes.train_window - bos_tokens);
  const size_t needed = (fit + calibration + tested + whole_windows(least, step)) * step;
  if (train.ids.size() < needed) {
    fail(
        "{}: too short: expected at least {} tokens (windows of {}: fit {}, calibration {}, test "
        "{}; and a batch of {} to train on), found {}",
        train.name, needed, window, fit, calibration, tested, least, train.ids.size());
  }
  const Windows all(train.ids, window, bos, train.name);
  const size_t first = (fit + calibration) * step;
  const size_t last = test ? train.ids.size() : (available - tested) * step;
  const auto begin = train.ids.begin();
  LinearizeTexts made{Windows({begin + static_cast<std::ptrdiff_t>(first),
                               begin + static_cast<std::ptrdiff_t>(last)},
                              sizes.train_window, bos, train.name),
                      take(all, 0, fit),
                      take(all, fit, fit + calibration),
                      {},
                      {{"unit", "window"},
                       {"window", window},
                       {"fit", {0, fit}},
                       {"calibration", {fit, fit + calibration}},
                       {"train", {{"window", sizes.train_window}, {"tokens", {first, last}}}}}};
  if (test) {
    add_own_text(*test, "test", bos, sizes, made);
  } else {
    made.held_out.push_back({"test", take(all, available - tested, available)});
    made.description["test"] = {{"of", train.name}, {"windows", {available - tested, available}}};
  }
  if (second) add_own_text(*second, "second", bos, sizes, made);
  return made;
}

}  // namespace halflin
