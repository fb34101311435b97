#include "halflin/analyze/texts.h"

#include <algorithm>
#include <set>

#include "halflin/base/error.h"

namespace halflin {

namespace {

size_t windows_for(size_t tokens, size_t window) { return (tokens + window - 1) / window; }

Sample sample_of(const Windows& windows, size_t index, bool last_row_counts) {
  Sample sample{windows.batch(index), {}};
  sample.use.assign(sample.batch.rows(), 1);
  if (!last_row_counts) sample.use.back() = 0;  // it predicts nothing
  return sample;
}

void require_windows(const char* name, const Windows& windows, size_t needed) {
  if (needed <= windows.count()) return;
  fail("{} is too short: {} tokens are needed ({} windows of {}), found {}", name,
       needed * windows.window(), needed, windows.window(), windows.count() * windows.window());
}

AnalysisText cut(const Windows& windows, size_t first, size_t count) {
  AnalysisText text;
  text.train_windows = count / 2;
  for (size_t w = 0; w < count; ++w) {
    text.samples.push_back(sample_of(windows, first + w, false));
    const std::vector<int32_t>& ids = text.samples.back().batch.ids;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      text.input.push_back(ids[t]);
      text.target.push_back(ids[t + 1]);
      text.window.push_back(static_cast<uint32_t>(w));
      text.position.push_back(static_cast<uint32_t>(t));
    }
    if (w + 1 == text.train_windows) text.train_rows = text.rows();
  }
  return text;
}

}  // namespace

AnalysisTexts make_analysis_texts(std::vector<int32_t> ids_a, std::vector<int32_t> ids_b,
                                  size_t window, std::optional<int32_t> bos, size_t fit_tokens,
                                  size_t tokens) {
  if (fit_tokens == 0) throw UsageError("--fit-tokens 0: surrogates need at least 1 token");
  constexpr size_t kMostTokens = size_t{1} << 48;  // no text has more, and no sum of two overflows
  if (std::max(fit_tokens, tokens) > kMostTokens) {  // "-1" reads as 2^64 - 1
    throw UsageError(fmt::format("--fit-tokens {} and --tokens {}: expected at most {}", fit_tokens,
                                 tokens, kMostTokens));
  }
  const size_t count = windows_for(tokens, window);
  if (count < 4) {
    throw UsageError(fmt::format("--tokens {}: at least four windows of {} are needed, {} tokens",
                                 tokens, window, 4 * window));
  }
  AnalysisTexts texts;
  for (const int32_t id : ids_a) ++texts.frequency[id];
  const Windows a(std::move(ids_a), window, bos);
  const Windows b(std::move(ids_b), window, bos);
  const size_t fit = windows_for(fit_tokens, window);
  require_windows("text A (--text)", a, fit + count);
  require_windows("text B (--second-text)", b, count);
  for (size_t w = 0; w < fit; ++w) texts.fit.push_back(sample_of(a, w, true));
  texts.a = cut(a, fit, count);
  texts.b = cut(b, 0, count);

  std::set<std::vector<int32_t>> seen;
  for (const Sample& sample : texts.fit) seen.insert(sample.batch.ids);
  for (const Sample& sample : texts.a.samples) seen.insert(sample.batch.ids);
  const auto repeated =
      std::count_if(texts.b.samples.begin(), texts.b.samples.end(),
                    [&](const Sample& sample) { return seen.contains(sample.batch.ids); });
  if (repeated != 0) {
    fail("{} of {} windows of text B (--second-text) are in text A too: they must be different",
         repeated, count);
  }
  const size_t half = texts.a.train_windows;
  texts.description = {
      {"unit", "window"},
      {"window", window},
      {"a", {{"fit", {0, fit}}, {"train", {fit, fit + half}}, {"test", {fit + half, fit + count}}}},
      {"b", {{"train", {0, half}}, {"test", {half, count}}}}};
  return texts;
}

std::vector<size_t> first_rows(const AnalysisText& text) {
  std::vector<size_t> first(text.windows() + 1, 0);
  for (size_t w = 0; w < text.windows(); ++w) {
    first[w + 1] = first[w] + text.samples[w].batch.rows() - 1;
  }
  return first;
}

}  // namespace halflin
