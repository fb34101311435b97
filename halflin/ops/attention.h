// Causal self-attention over packed sequences: grouped heads, optional sliding window.
#pragma once

#include <vector>

#include "halflin/ops/linear.h"

namespace halflin {

struct AttentionShape {
  size_t heads = 0;     // query heads
  size_t kv_heads = 0;  // key and value heads; heads is a multiple
  size_t head_dim = 0;
  float scale = 1.f;  // on query-key products
  size_t window = 0;  // a position sees itself and the window - 1 before it; 0 = all before it
};

// Buffers that attention keeps between calls: memory is linear in the number of rows.
struct AttentionScratch {
  Matrix<float> packed;               // keys transposed and values of every sequence and head
  std::vector<Matrix<float>> scores;  // one a worker
};

// queries_keys_values [T, (heads + 2 kv_heads) head_dim] holds q | k | v, positions applied; out is
// [T, heads * head_dim]. Sequence s has rows [offsets[s], offsets[s + 1]) and sees only itself.
void attend(ThreadPool& pool, const AttentionShape& shape, MatView<const float> queries_keys_values,
            std::span<const size_t> offsets, AttentionScratch& scratch, MutableOperand out);

}  // namespace halflin
