// The keys and values that one layer's attention has seen, and attention of one new position.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"
#include "halflin/ops/attention_shape.h"

namespace halflin {

// Elements are float32, or float16 (values beyond its range become its largest). Keys lie in blocks
// of kKeyBlock positions, [kv_heads][blocks][head_dim][kKeyBlock], so that one vector holds the
// same dimension of neighbouring positions and scores need no sum across lanes; values lie position
// by position, [kv_heads][positions][value_stride].
class KeyValueCache {
 public:
  static constexpr size_t kKeyBlock = 16;

  KeyValueCache() = default;
  // Room for `positions` positions. Memory is touched only where positions are stored.
  KeyValueCache(const AttentionShape& shape, size_t positions, bool is_f16);

  size_t positions() const { return positions_; }
  bool is_f16() const { return is_f16_; }
  size_t bytes() const;
  // Of one position: what attention reads for each position it sees.
  size_t bytes_per_position() const;

  // Stores keys and values, [T, kv_heads * head_dim] each, positions applied, from `position` on.
  void store(ThreadPool& pool, size_t position, MatView<const float> keys,
             MatView<const float> values);
  // Reads positions [0, count) of a head: keys transposed, [head_dim, count], and values [count,
  // head_dim].
  void read(size_t kv_head, size_t count, MatView<float> keys, MatView<float> values) const;

  // Where a head's keys and values begin.
  const void* keys(size_t kv_head) const { return at(keys_, kv_head * key_elements()); }
  const void* values(size_t kv_head) const { return at(values_, kv_head * value_elements()); }
  size_t value_stride() const { return value_stride_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  using Bytes = std::unique_ptr<unsigned char, Free>;

  size_t key_elements() const { return padded_ * head_dim_; }
  size_t value_elements() const { return padded_ * value_stride_; }
  size_t element_bytes() const { return is_f16_ ? 2 : 4; }
  void* at(const Bytes& bytes, size_t element) const {
    return bytes.get() + element * element_bytes();
  }

  size_t kv_heads_ = 0;
  size_t head_dim_ = 0;
  size_t value_stride_ = 0;
  size_t positions_ = 0;
  size_t padded_ = 0;  // whole blocks of keys
  bool is_f16_ = false;
  Bytes keys_, values_;
};

// Buffers that attend_cached keeps between calls.
struct CachedAttentionScratch {
  std::vector<float> partial;         // each task's mixed values, largest score and sum
  std::vector<Matrix<float>> scores;  // one a worker
};

// Attention of the position stored last, `position`, over [0, position] (or the window before it):
// queries [heads * head_dim], positions applied, to out [heads * head_dim]. Positions are cut into
// runs whatever the number of threads, and their results added up in order.
void attend_cached(ThreadPool& pool, const AttentionShape& shape, const KeyValueCache& cache,
                   size_t position, const float* queries, CachedAttentionScratch& scratch,
                   float* out);

}  // namespace halflin
