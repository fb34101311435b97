// Causal self-attention over packed sequences: grouped heads, optional sliding window.
#pragma once

#include <vector>

#include "halflin/ops/attention_shape.h"
#include "halflin/ops/kv_cache.h"
#include "halflin/ops/linear.h"

namespace halflin {

// Buffers that attention keeps between calls: memory is linear in the number of rows.
struct AttentionScratch {
  Matrix<float> packed;               // keys transposed and values of every sequence and head
  std::vector<Matrix<float>> scores;  // one a worker
};

// Tokens before the first row of a batch's only sequence.
struct Past {
  const KeyValueCache* cache = nullptr;  // of this layer
  size_t count = 0;
};

// queries_keys_values [T, (heads + 2 kv_heads) head_dim] holds q | k | v, positions applied; out is
// [T, heads * head_dim]. Sequence s has rows [offsets[s], offsets[s + 1]) and sees only itself, and
// the past where there is one.
void attend(ThreadPool& pool, const AttentionShape& shape, MatView<const float> queries_keys_values,
            std::span<const size_t> offsets, AttentionScratch& scratch, MutableOperand out,
            const Past& past = {});

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
