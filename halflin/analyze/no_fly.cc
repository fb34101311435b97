#include "halflin/analyze/no_fly.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "halflin/analyze/resample.h"
#include "halflin/base/random.h"

namespace halflin {

namespace {

constexpr size_t kMostDraws = 1000;  // each visits every type's every window
constexpr size_t kHalvings = 50;     // split-half reliability is their average
constexpr double kFewestInHalf = 3;  // a type's tokens in each half

// One type's tokens, window by window.
struct WindowSum {
  uint32_t window;
  double n;
  double sum;
};
struct TypeDeltas {
  double n = 0, sum = 0, positive = 0;
  std::vector<WindowSum> windows;
  double mean() const { return sum / n; }
};
using Types = std::map<int32_t, TypeDeltas>;  // ordered: same result everywhere

Types by_type(const TokenDeltas& deltas) {
  Types types;
  for (size_t t = 0; t < deltas.token.size(); ++t) {
    TypeDeltas& type = types[deltas.token[t]];
    const auto delta = static_cast<double>(deltas.delta[t]);
    type.n += 1;
    type.sum += delta;
    type.positive += delta > 0;
    if (type.windows.empty() || type.windows.back().window != deltas.window[t]) {
      type.windows.push_back({deltas.window[t], 0, 0});
    }
    type.windows.back().n += 1;
    type.windows.back().sum += delta;
  }
  return types;
}

bool on_list(const TypeDeltas& type, const NoFlyRules& rules) {
  return type.mean() > rules.mean_above && type.positive / type.n > rules.positive_above;
}

struct Pair {
  const TypeDeltas* a;
  const TypeDeltas* b;
};

// The type's mean where window w counts weight(w) times; NaN where that leaves none of it.
template <class Weight>
double weighted_mean(const TypeDeltas& type, const Weight& weight) {
  double n = 0, sum = 0;
  for (const WindowSum& w : type.windows) {
    const auto times = static_cast<double>(weight(w.window));
    n += times * w.n;
    sum += times * w.sum;
  }
  return n > 0 ? sum / n : std::numeric_limits<double>::quiet_NaN();
}

Interval pair_correlation(ThreadPool& pool, std::span<const Pair> pairs,
                          const BootstrapDraws& a_draws, const BootstrapDraws& b_draws,
                          double confidence) {
  std::vector<double> a, b;
  for (const Pair& pair : pairs) {
    a.push_back(pair.a->mean());
    b.push_back(pair.b->mean());
  }
  const double estimate = pearson(a, b);
  const size_t draws = std::min({kMostDraws, a_draws.counts.rows(), b_draws.counts.rows()});
  std::vector<double> values(draws);
  pool.parallel_for(draws, [&](size_t r, int) {
    std::vector<double> drawn_a, drawn_b;
    for (const Pair& pair : pairs) {
      const double u = weighted_mean(*pair.a, [&](uint32_t w) { return a_draws.counts(r, w); });
      const double v = weighted_mean(*pair.b, [&](uint32_t w) { return b_draws.counts(r, w); });
      if (std::isnan(u) || std::isnan(v)) continue;
      drawn_a.push_back(u);
      drawn_b.push_back(v);
    }
    values[r] = pearson(drawn_a, drawn_b);
  });
  Interval out =
      fisher_interval(estimate, values, std::min(a_draws.windows, b_draws.windows), confidence);
  out.too_few = out.too_few || pairs.size() < kFewestTypes;
  return out;
}

// Fisher's interval of a correlation over `types` types, then Spearman and Brown's step to twice
// the length, which is monotone.
Interval reliability(std::span<const TypeDeltas* const> types, size_t windows, uint64_t seed,
                     double confidence) {
  Random random(seed, "halves of windows");
  std::vector<size_t> order(windows);
  double sum = 0, count = 0;
  size_t halves = 0;
  for (size_t i = 0; i < kHalvings; ++i) {
    for (size_t w = 0; w < windows; ++w) order[w] = w;
    random.shuffle(std::span(order));
    std::vector<uint8_t> first(windows, 0);
    for (size_t w = 0; w < windows / 2; ++w) first[order[w]] = 1;
    std::vector<double> a, b;
    for (const TypeDeltas* type : types) {
      double n = 0;
      for (const WindowSum& w : type->windows) n += first[w.window] != 0 ? w.n : 0;
      if (n < kFewestInHalf || type->n - n < kFewestInHalf) continue;
      a.push_back(weighted_mean(*type, [&](uint32_t w) { return first[w]; }));
      b.push_back(weighted_mean(*type, [&](uint32_t w) { return 1 - first[w]; }));
    }
    if (a.size() < kFewestTypes) continue;
    sum += pearson(a, b);
    count += static_cast<double>(a.size());
    ++halves;
  }
  Interval out;
  out.windows = windows;
  out.too_few = halves == 0 || windows < kFewestWindows;
  if (halves == 0) return out;
  const double r = std::clamp(sum / static_cast<double>(halves), -0.999999, 0.999999);
  const double n = count / static_cast<double>(halves);
  const double reach = normal_quantile(0.5 * (1 + confidence)) / std::sqrt(n - 3);
  const auto whole = [](double half) { return half > -1 ? 2 * half / (1 + half) : -1; };
  out.estimate = whole(r);
  // A negative correlation of halves is noise about 0; stepped up it would explode.
  const auto bounded = [&](double half) { return std::max(-1.0, whole(half)); };
  out.lo = bounded(std::tanh(std::atanh(r) - reach));
  out.hi = bounded(std::tanh(std::atanh(r) + reach));
  out.estimate = std::max(-1.0, out.estimate);
  return out;
}

}  // namespace

NoFlyResult no_fly(ThreadPool& pool, const TokenDeltas& a, const TokenDeltas& b,
                   const BootstrapDraws& a_draws, const BootstrapDraws& b_draws,
                   const NoFlyRules& rules, uint64_t seed, double confidence) {
  const Types types_a = by_type(a);
  const Types types_b = by_type(b);
  NoFlyResult out;
  std::vector<Pair> shared, found;
  for (const auto& [id, type] : types_a) {
    if (type.n < static_cast<double>(rules.at_least)) continue;
    ++out.frequent;
    const auto other = types_b.find(id);
    const double elsewhere = other == types_b.end() ? 0 : other->second.n;
    const bool seen = elsewhere >= static_cast<double>(rules.elsewhere_at_least);
    if (elsewhere >= static_cast<double>(rules.at_least)) shared.push_back({&type, &other->second});
    const bool still = seen && on_list(other->second, rules);
    out.found_any += seen;
    out.still_any += still;
    if (!on_list(type, rules)) continue;
    ++out.listed;
    out.tokens.push_back({id, static_cast<size_t>(type.n), type.mean(), type.positive / type.n,
                          static_cast<size_t>(elsewhere),
                          elsewhere > 0 ? other->second.mean() : 0});
    if (!seen) continue;
    found.push_back({&type, &other->second});
    out.still += still;
    out.flipped += other->second.mean() < 0;
  }
  out.shared = shared.size();
  out.found = found.size();
  std::stable_sort(out.tokens.begin(), out.tokens.end(),
                   [](const auto& l, const auto& r) { return l.mean > r.mean; });
  out.correlation = pair_correlation(pool, shared, a_draws, b_draws, confidence);
  out.listed_correlation = pair_correlation(pool, found, a_draws, b_draws, confidence);
  std::vector<const TypeDeltas*> shared_a, shared_b;
  for (const Pair& pair : shared) {
    shared_a.push_back(pair.a);
    shared_b.push_back(pair.b);
  }
  out.reliability_a = reliability(shared_a, a.windows, seed, confidence);
  out.reliability_b = reliability(shared_b, b.windows, seed, confidence);
  out.ceiling = std::sqrt(std::max(0.0, out.reliability_a.estimate) *
                          std::max(0.0, out.reliability_b.estimate));
  return out;
}

}  // namespace halflin
