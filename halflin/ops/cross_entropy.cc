#include "halflin/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/cross_entropy.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/log_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

void add_logits(MatView<const float> logits, RunningSum* rows) {
  for (size_t t = 0; t < logits.rows; ++t) add_row(logits.row(t), logits.cols, 1.f, rows[t]);
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(add_logits);

Head make_head(MatView<const float> weight, std::span<const float> bias, Precision precision) {
  Head head;
  head.vocab = weight.rows;
  for (size_t begin = 0; begin < weight.rows; begin += kHeadChunk) {
    const size_t count = std::min(kHeadChunk, weight.rows - begin);
    head.chunks.emplace_back(weight.row_range(begin, count), /*in_by_out=*/false,
                             bias.empty() ? bias : bias.subspan(begin, count), precision);
  }
  return head;
}

void next_token_losses(ThreadPool& pool, const Head& head, Operand hidden,
                       std::span<const int32_t> targets, std::span<float> losses) {
  const size_t blocks = (hidden.rows + kRowBlock - 1) / kRowBlock;
  pool.parallel_for(blocks, [&](size_t block, int) {
    thread_local Matrix<float> logits;  // one block of rows by one chunk of the vocabulary
    if (logits.empty()) logits = Matrix<float>(kRowBlock, kHeadChunk);
    const size_t begin = block * kRowBlock;
    const size_t rows = std::min(kRowBlock, hidden.rows - begin);
    RunningSum sums[kRowBlock];
    float target_logits[kRowBlock] = {};
    for (size_t c = 0; c < head.chunks.size(); ++c) {
      const size_t first = c * kHeadChunk;
      const size_t width = head.chunks[c].out();
      const MatView<float> part(logits.data(), rows, width);
      head.chunks[c].forward(pool, hidden.row_range(begin, rows), part);
      HWY_DYNAMIC_DISPATCH(add_logits)(part, sums);
      for (size_t t = 0; t < rows; ++t) {
        const int32_t target = targets[begin + t];
        if (target < 0) continue;
        const size_t column = static_cast<size_t>(target) - first;
        if (column < width) target_logits[t] = part(t, column);
      }
    }
    for (size_t t = 0; t < rows; ++t) {
      const double log_sum = static_cast<double>(sums[t].max) + std::log(sums[t].sum);
      losses[begin + t] = targets[begin + t] < 0
                              ? 0.f
                              : static_cast<float>(log_sum - static_cast<double>(target_logits[t]));
    }
  });
}

void compute_logits(ThreadPool& pool, const Head& head, Operand hidden, MatView<float> logits) {
  for (size_t c = 0; c < head.chunks.size(); ++c) {
    head.chunks[c].forward(pool, hidden, logits.col_range(c * kHeadChunk, head.chunks[c].out()));
  }
}

}  // namespace halflin
#endif
