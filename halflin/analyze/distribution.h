// How delta, the loss with a linear MLP minus the loss without, is spread over tokens.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "halflin/measure/statistics.h"

namespace halflin {

inline constexpr double kDeltaQuantiles[] = {0.001, 0.01, 0.05, 0.1,  0.25, 0.5,
                                             0.75,  0.9,  0.95, 0.99, 0.999};
inline constexpr double kWorstShares[] = {0.01, 0.05, 0.1};

struct DeltaDistribution {
  size_t count = 0;
  double mean = 0, sd = 0;        // nats; population
  double skew = 0, kurtosis = 0;  // third moment / sd^3; fourth / sd^4 - 3
  std::vector<double> quantiles;  // at kDeltaQuantiles
  Interval positive;              // share of tokens with delta > 0
  Interval near_zero;             // share with |delta| < 0.01 nats
  Interval small;                 // share with |delta| < 0.05 nats
  double harm = 0;                // sum of the positive deltas over tokens, nats a token
  double gain = 0;                // the same of the negative ones, as a positive number
  std::vector<Interval> worst;    // share of the harm in the worst kWorstShares of all tokens
  // Share of the harm in the worst p of the tokens, for p = 0, 0.05 ... 1.
  std::vector<std::pair<double, double>> lorenz;
};

// delta [T] is finite, window[t] in [0, draws.windows).
DeltaDistribution delta_distribution(ThreadPool& pool, const BootstrapDraws& draws,
                                     std::span<const float> delta, std::span<const uint32_t> window,
                                     const IntervalOptions& options);

}  // namespace halflin
