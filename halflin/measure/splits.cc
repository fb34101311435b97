#include "halflin/measure/splits.h"

#include <algorithm>

#include "halflin/base/error.h"

namespace halflin {

namespace {

// Rows of one batch of short sequences: enough for efficient products, few enough to stay in cache.
constexpr size_t kBatchRows = 512;

struct Placement {
  const char* name;
  const char* option;
  size_t tokens;
  const std::optional<std::string>* given;
  std::optional<WindowRange> range;
};

// More than any text has, and few enough that their sum does not overflow ("-1" reads as 2^64 - 1).
constexpr size_t kMostTokens = size_t{1} << 48;

void check_tokens(const char* split, size_t tokens) {
  if (tokens == 0) throw UsageError(fmt::format("the {} split needs at least 1 token", split));
  if (tokens > kMostTokens) {
    throw UsageError(fmt::format("the {} split: expected at most {} tokens, found {}", split,
                                 kMostTokens, tokens));
  }
}

bool overlap(const WindowRange& a, const WindowRange& b) {
  return a.begin < b.end && b.begin < a.end;
}

std::vector<Sample> samples_of(const Windows& windows, const std::optional<WindowRange>& range,
                               bool last_row_counts) {
  std::vector<Sample> samples;
  if (!range) return samples;
  for (size_t w = range->begin; w < range->end; ++w) {
    Sample sample{windows.batch(w), {}};
    sample.use.assign(sample.batch.rows(), 1);
    if (!last_row_counts) sample.use.back() = 0;  // it predicts nothing
    samples.push_back(std::move(sample));
  }
  return samples;
}

// Collects sequences into batches of about kBatchRows.
class Packer {
 public:
  void add(std::span<const int32_t> ids, size_t used) {
    if (samples_.empty() || samples_.back().batch.rows() + ids.size() > kBatchRows) {
      samples_.emplace_back();
    }
    Sample& sample = samples_.back();
    sample.batch.add(ids);
    sample.use.insert(sample.use.end(), used, 1);
    sample.use.resize(sample.batch.rows(), 0);
  }
  std::vector<Sample> take() { return std::move(samples_); }

 private:
  std::vector<Sample> samples_;
};

}  // namespace

Splits make_window_splits(const Windows& windows, const SplitSizes& sizes) {
  std::vector<Placement> placements = {
      {"fit", "--fit-windows", sizes.fit_tokens, &sizes.fit_windows, {}}};
  if (sizes.needs_gates) {
    placements.push_back(
        {"train", "--train-windows", sizes.train_tokens, &sizes.train_windows, {}});
    placements.push_back({"calibration",
                          "--calibration-windows",
                          sizes.calibration_tokens,
                          &sizes.calibration_windows,
                          {}});
  }
  placements.push_back({"test", "--eval-windows", sizes.eval_tokens, &sizes.eval_windows, {}});
  if (sizes.harm_tokens != 0 || sizes.harm_windows) {
    placements.push_back({"harm", "--harm-windows", sizes.harm_tokens, &sizes.harm_windows, {}});
  }

  size_t needed = 0;
  for (Placement& p : placements) {
    if (*p.given) {
      p.range = parse_window_range(**p.given, windows.count(), windows.window(), windows.name());
      needed += p.range->count();
    } else {
      check_tokens(p.name, p.tokens);
      needed += (p.tokens + windows.window() - 1) / windows.window();
    }
  }
  const auto too_short = [&]() {
    fail("{}: too short for the splits asked: {} tokens are needed ({} windows of {}), found {}",
         windows.name(), needed * windows.window(), needed, windows.window(),
         windows.count() * windows.window());
  };
  if (needed > windows.count()) too_short();
  for (const Placement& a : placements) {
    for (const Placement& b : placements) {
      if (&a < &b && a.range && b.range && overlap(*a.range, *b.range)) {
        fail("{} {}:{} overlaps {} {}:{}: splits must be disjoint", a.option, a.range->begin,
             a.range->end, b.option, b.range->begin, b.range->end);
      }
    }
  }
  for (Placement& p : placements) {
    if (p.range) continue;
    const size_t count = (p.tokens + windows.window() - 1) / windows.window();
    WindowRange range{0, count};
    for (bool moved = true; moved;) {  // past every split that it would overlap
      moved = false;
      for (const Placement& other : placements) {
        if (other.range && overlap(range, *other.range)) {
          range = {other.range->end, other.range->end + count};
          moved = true;
        }
      }
    }
    if (range.end > windows.count()) too_short();
    p.range = range;
  }

  Splits splits;
  splits.description = {{"unit", "window"}, {"window", windows.window()}};
  for (const Placement& p : placements) {
    splits.description[p.name] = {p.range->begin, p.range->end};
    std::vector<Sample>& target = std::string_view(p.name) == "fit"     ? splits.fit
                                  : std::string_view(p.name) == "train" ? splits.train
                                  : std::string_view(p.name) == "harm"  ? splits.harm
                                  : std::string_view(p.name) == "test"  ? splits.test
                                                                        : splits.calibration;
    target = samples_of(windows, p.range, &target == &splits.fit);
  }
  std::ranges::sort(placements, {}, [](const Placement& p) { return p.range->begin; });
  size_t free = 0;
  for (const Placement& p : placements) {
    if (free < p.range->begin) splits.rest.push_back({free, p.range->begin});
    free = p.range->end;
  }
  if (free < windows.count()) splits.rest.push_back({free, windows.count()});
  return splits;
}

Splits make_paper_splits(const Tokenizer& tokenizer, std::string_view text, size_t max_positions,
                         const SplitSizes& sizes, const std::string& name) {
  check_tokens("fit", sizes.fit_tokens);
  if (sizes.needs_gates) check_tokens("train", sizes.train_tokens);
  check_tokens("test", sizes.eval_tokens);
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    const size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
    lines.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  const auto is_blank = [](std::string_view line) {
    return line.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos;
  };
  // Calls take(ids) for each usable line of [first, last) until it returns false; says whether it
  // did.
  const auto walk = [&](size_t first, size_t last, size_t cut, size_t at_least, const auto& take) {
    for (size_t i = first; i < std::min(last, lines.size()); ++i) {
      if (is_blank(lines[i])) continue;
      std::vector<int32_t> ids = tokenizer.encode(lines[i]);
      if (ids.size() < at_least) continue;
      ids.resize(std::min({ids.size(), cut, max_positions}));
      if (!take(ids)) return true;
    }
    return false;
  };

  Splits splits;
  size_t fit = 0;
  Packer packer;
  walk(0, 500, 512, 2, [&](const std::vector<int32_t>& ids) {
    const size_t used = std::min(ids.size(), sizes.fit_tokens - fit);
    packer.add(ids, used);
    fit += used;
    return fit < sizes.fit_tokens;
  });
  splits.fit = packer.take();
  size_t train = 0;
  if (sizes.needs_gates) {
    walk(1000, 3000, 256, 4, [&](const std::vector<int32_t>& ids) {
      const size_t used = std::min(ids.size() - 1, sizes.train_tokens - train);
      packer.add(ids, used);
      train += used;
      return train < sizes.train_tokens;
    });
    splits.train = packer.take();
  }
  size_t predictions = 0;
  walk(2000, 2500, 512, 2, [&](const std::vector<int32_t>& ids) {
    packer.add(ids, ids.size() - 1);
    predictions += ids.size() - 1;
    return predictions < sizes.eval_tokens;
  });
  splits.test = packer.take();
  if (fit == 0 || predictions == 0 || (sizes.needs_gates && train == 0)) {
    fail(
        "{}: too short for the paper's protocol: it needs 3000 lines (2500 without gates), found "
        "{}",
        name, lines.size());
  }
  splits.description = {{"unit", "line"},
                        {"fit", {{"lines", {0, 500}}, {"tokens", fit}}},
                        {"train", {{"lines", {1000, 3000}}, {"tokens", train}}},
                        {"test", {{"lines", {2000, 2500}}, {"tokens", predictions}}}};
  return splits;
}

}  // namespace halflin
