// Next-token loss, fused with the output head: logits of a whole vocabulary never leave the cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/ops/linear.h"

namespace halflin {

// The output head cut along the vocabulary into chunks of kHeadChunk rows.
inline constexpr size_t kHeadChunk = 1024;
struct Head {
  size_t vocab = 0;
  std::vector<Linear> chunks;
};
Head make_head(MatView<const float> weight /* [vocab, d] */, std::span<const float> bias,
               Precision precision);

// losses[t] = log sum exp(logits[t]) - logits[t, targets[t]] in nats; NaN-free input gives finite
// losses. A target of -1 skips its row's loss (set to 0). hidden [T, d] is the final norm's output.
void next_token_losses(ThreadPool& pool, const Head& head, Operand hidden,
                       std::span<const int32_t> targets, std::span<float> losses);

// logits [T, vocab]
void compute_logits(ThreadPool& pool, const Head& head, Operand hidden, MatView<float> logits);

}  // namespace halflin
