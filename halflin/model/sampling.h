// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/random.h"

namespace halflin {

// What is done to the logits, in this order, which is that of transformers: repetition penalty,
// temperature, top-k, top-p, min-p, a draw from what is left.
struct SamplingOptions {
  double temperature = 0;         // 0: the largest logit, no draw (of equals the lowest id)
  size_t top_k = 0;               // the most probable tokens kept; 0: all
  double top_p = 1;               // the fewest, most probable tokens whose probabilities reach this
  double min_p = 0;               // tokens at least this probable, relative to the most probable
  double repetition_penalty = 1;  // divides a seen token's logit above 0, multiplies one below
                                  // (Keskar et al. 2019)
  size_t repetition_window = 64;  // a token is seen if it is among so many last ones; 0: among all
  uint64_t seed = 0;
};

// Throws UsageError naming the option for a value that means nothing.
void check_sampling(const SamplingOptions& options);

// A token that may be drawn.
struct Candidate {
  int32_t id;
  double probability;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // The next token after `history` (prompt and generated so far). Throws Error where a logit is
  // NaN or +Inf, or all are -Inf. -Inf alone is a token that cannot come.
  int32_t next(std::span<const float> logits, std::span<const int32_t> history);

  // The tokens that next() would draw from, by falling probability (of equals the lowest id
  // first), their probabilities summing to 1. At temperature 0 the one token. Valid until the next
  // call.
  std::span<const Candidate> candidates(std::span<const float> logits,
                                        std::span<const int32_t> history);

 private:
  void penalise(std::span<const float> logits, std::span<const int32_t> history);
  // Fills candidates_, in an order that depends on the options alone.
  void select(std::span<const float> logits, std::span<const int32_t> history);

  SamplingOptions options_;
  Random random_;
  std::vector<float> logits_;          // after the penalty
  std::vector<Candidate> candidates_;  // relative to the most probable one
};

}  // namespace halflin
