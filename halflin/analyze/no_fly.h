// No-Fly lists (arXiv 2603.03459): tokens whose loss suffers, on average, where the MLP is linear.
// Do they stay the same on another text? And could they, given how noisy means of few tokens are?
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/measure/statistics.h"

namespace halflin {

struct NoFlyRules {
  size_t at_least = 10;           // times seen
  double mean_above = 0.05;       // nats
  double positive_above = 0.6;    // share of its deltas above 0
  size_t elsewhere_at_least = 5;  // times seen on the other text, to be looked for there
};

// Deltas of one text by token, whichever token of the row it is.
struct TokenDeltas {
  std::span<const int32_t> token;    // [T]
  std::span<const float> delta;      // [T] nats
  std::span<const uint32_t> window;  // [T] in [0, windows)
  size_t windows = 0;
};

struct ListedToken {
  int32_t id = 0;
  size_t n = 0;
  double mean = 0;
  double positive = 0;
  size_t n_elsewhere = 0;
  double mean_elsewhere = 0;
};

struct NoFlyResult {
  size_t frequent = 0;   // types seen often enough on A to be judged
  size_t shared = 0;     // of them, types seen as often on B
  size_t listed = 0;     // types on A's list
  size_t found = 0;      // of them, types seen often enough on B
  size_t still = 0;      // of those found, on the list by B's figures
  size_t flipped = 0;    // of those found, mean below 0 on B
  size_t found_any = 0;  // types seen often enough on both for the next figure: at_least on A,
  size_t still_any = 0;  //   elsewhere_at_least on B; of them on the list by B's figures (chance)
  Interval correlation;  // of the types' means on A and B, over `shared`
  Interval listed_correlation;  // over `found`, as published
  // Split-half reliability of the means over `shared`, stepped up to the whole text by Spearman and
  // Brown; its interval is Fisher's over types. `ceiling` is the correlation that A and B could
  // show at most if every type's true mean were the same on both: the root of the reliabilities'
  // product.
  Interval reliability_a, reliability_b;
  double ceiling = 0;
  std::vector<ListedToken> tokens;  // A's list, by falling mean
};

// `a_draws` over A's windows, `b_draws` over B's: correlations' intervals resample both.
NoFlyResult no_fly(ThreadPool& pool, const TokenDeltas& a, const TokenDeltas& b,
                   const BootstrapDraws& a_draws, const BootstrapDraws& b_draws,
                   const NoFlyRules& rules, uint64_t seed, double confidence);

// With fewer types a correlation over them says nothing: it is marked too_few.
inline constexpr size_t kFewestTypes = 10;

}  // namespace halflin
