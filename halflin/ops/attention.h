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

// Buffers of attend_backward: memory is linear in the number of rows.
struct AttentionGradientScratch {
  Matrix<float> key_value;             // gradients of keys and values, of every query head apart
  std::vector<Matrix<float>> workers;  // packed heads and one block of scores, one a worker
};

// The gradient of `attend`: from dout [T, heads * head_dim] to dqueries_keys_values, overwritten.
// Scores are computed again, a block of query rows at a time; nothing of the forward pass but its
// input is needed. The order of additions does not depend on the number of threads.
void attend_backward(ThreadPool& pool, const AttentionShape& shape,
                     MatView<const float> queries_keys_values, std::span<const size_t> offsets,
                     MatView<const float> dout, AttentionGradientScratch& scratch,
                     MatView<float> dqueries_keys_values);

}  // namespace halflin
