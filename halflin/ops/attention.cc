#include "halflin/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/attention.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/bf16-inl.h"
#include "halflin/ops/multiply-inl.h"
#include "halflin/ops/softmax-inl.h"

// Query rows that share one pass over the keys: their scores stay in the L1 cache.
#ifndef HALFLIN_ATTENTION_BLOCKS
#define HALFLIN_ATTENTION_BLOCKS
namespace halflin {
inline constexpr size_t kQueryBlock = 12;
inline constexpr size_t kQueryTask = 8 * kQueryBlock;  // query rows of one task
inline constexpr size_t kPad = 32;                     // floats in two of the widest vectors

// Keys of one (sequence, kv head), transposed: [head_dim, stride]; values: [length, value_stride].
// The past's come first.
struct PackedHead {
  float* keys;
  size_t key_stride;
  float* values;
  size_t value_stride;
};

// One (sequence, query head, kQueryTask rows) of work.
struct AttentionTask {
  const float* queries;  // first query row of the sequence, this head
  size_t query_stride;
  size_t begin, end;
  size_t past;  // positions before the sequence's first row
  PackedHead head;
};
}  // namespace halflin
#endif

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

// `scratch` is [kQueryBlock, key_stride + value_stride].
void attend_rows(const AttentionShape& shape, const AttentionTask& task, float* scratch,
                 MutableOperand out) {
  const size_t stride = task.head.key_stride;
  float* scores = scratch;
  float* mixed = scratch + kQueryBlock * stride;
  for (size_t begin = task.begin; begin < task.end; begin += kQueryBlock) {
    const size_t rows = std::min(kQueryBlock, task.end - begin);
    // Keys that any of these rows sees: [first, last), first on a vector boundary.
    const size_t position = task.past + begin;
    const size_t last = position + rows;
    size_t first = 0;
    if (shape.window != 0 && position + 1 > shape.window) {
      first = (position + 1 - shape.window) / kPad * kPad;
    }
    const size_t keys = last - first;
    const size_t padded = (keys + kPad - 1) / kPad * kPad;
    multiply<false>(task.queries + begin * task.query_stride, task.query_stride, 1,
                    task.head.keys + first, stride, scores, stride, rows, keys, shape.head_dim);
    float inverse_sums[kQueryBlock];
    for (size_t r = 0; r < rows; ++r) {
      const size_t end = position + r + 1;
      float* row = scores + r * stride;
      if (shape.window != 0 && end > first + shape.window) {
        std::fill_n(row, end - shape.window - first, -INFINITY);
      }
      inverse_sums[r] = 1.f / softmax_row(row, end - first, padded, shape.scale);
    }
    const size_t width = task.head.value_stride;
    multiply<false>(scores, stride, 1, task.head.values + first * width, width, mixed, width, rows,
                    shape.head_dim, keys);
    for (size_t r = 0; r < rows; ++r) {
      float* row = mixed + r * width;
      for (size_t i = 0; i < shape.head_dim; ++i) row[i] *= inverse_sums[r];
      if (out.is_bf16) {
        round_row(row, out.bf16_row(begin + r), shape.head_dim);
      } else {
        std::copy_n(row, shape.head_dim, out.f32_row(begin + r));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(attend_rows);

namespace {

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// An odd number of pads, so that rows do not fall into the same cache sets.
size_t padded_stride(size_t n) { return (round_up(n, kPad) / kPad | 1) * kPad; }

void pack_head(MatView<const float> keys, MatView<const float> values, const Past& past,
               size_t kv_head, const PackedHead& head) {
  const size_t length = past.count + keys.rows;
  if (past.count != 0) {
    past.cache->read(kv_head, past.count,
                     MatView<float>(head.keys, keys.cols, past.count, head.key_stride),
                     MatView<float>(head.values, past.count, values.cols, head.value_stride));
  }
  constexpr size_t kTile = 16;
  for (size_t begin = 0; begin < keys.rows; begin += kTile) {
    const size_t end = std::min(begin + kTile, keys.rows);
    for (size_t i = 0; i < keys.cols; ++i) {
      float* to = head.keys + i * head.key_stride + past.count;
      for (size_t t = begin; t < end; ++t) to[t] = keys(t, i);
    }
  }
  for (size_t i = 0; i < keys.cols; ++i) {
    std::fill(head.keys + i * head.key_stride + length, head.keys + (i + 1) * head.key_stride, 0.f);
  }
  for (size_t t = 0; t < length; ++t) {
    float* to = head.values + t * head.value_stride;
    if (t >= past.count) std::copy_n(values.row(t - past.count), values.cols, to);
    std::fill(to + values.cols, to + head.value_stride, 0.f);
  }
}

}  // namespace

void attend(ThreadPool& pool, const AttentionShape& shape, MatView<const float> queries_keys_values,
            std::span<const size_t> offsets, AttentionScratch& scratch, MutableOperand out,
            const Past& past) {
  const size_t sequences = offsets.size() - 1;
  if (past.count != 0 && sequences != 1) fail("a past of {} sequences", sequences);
  const size_t head_dim = shape.head_dim;
  const size_t value_stride = round_up(head_dim, kPad);

  // Where each (sequence, kv head) lies in the packed buffer, and the tasks over query rows.
  std::vector<PackedHead> packed(sequences * shape.kv_heads);
  size_t floats = 0;
  size_t longest = 0;
  for (size_t s = 0; s < sequences; ++s) {
    const size_t length = past.count + offsets[s + 1] - offsets[s];
    longest = std::max(longest, length);
    floats += shape.kv_heads * (head_dim * padded_stride(length) + length * value_stride);
  }
  if (scratch.packed.size() < floats) scratch.packed = Matrix<float>(1, floats);
  float* next = scratch.packed.data();
  std::vector<AttentionTask> tasks;
  std::vector<size_t> task_head;
  for (size_t s = 0; s < sequences; ++s) {
    const size_t rows = offsets[s + 1] - offsets[s];
    const size_t length = past.count + rows;
    for (size_t h = 0; h < shape.kv_heads; ++h) {
      PackedHead& head = packed[s * shape.kv_heads + h];
      head = {next, padded_stride(length), next + head_dim * padded_stride(length), value_stride};
      next = head.values + length * value_stride;
    }
    for (size_t h = 0; h < shape.heads; ++h) {
      const PackedHead& head = packed[s * shape.kv_heads + h / (shape.heads / shape.kv_heads)];
      for (size_t begin = 0; begin < rows; begin += kQueryTask) {
        tasks.push_back({queries_keys_values.row(offsets[s]) + h * head_dim,
                         queries_keys_values.stride, begin, std::min(begin + kQueryTask, rows),
                         past.count, head});
        task_head.push_back(s * shape.heads + h);
      }
    }
  }
  const size_t worker_floats = kQueryBlock * (padded_stride(longest) + value_stride);
  scratch.scores.resize(static_cast<size_t>(pool.size()));
  for (Matrix<float>& scores : scratch.scores) {
    if (scores.size() < worker_floats) scores = Matrix<float>(1, worker_floats);
  }

  pool.parallel_for(packed.size(), [&](size_t i, int) {
    const size_t s = i / shape.kv_heads;
    const size_t h = i % shape.kv_heads;
    const MatView<const float> rows =
        queries_keys_values.row_range(offsets[s], offsets[s + 1] - offsets[s]);
    pack_head(rows.col_range((shape.heads + h) * head_dim, head_dim),
              rows.col_range((shape.heads + shape.kv_heads + h) * head_dim, head_dim), past, h,
              packed[i]);
  });
  pool.parallel_for(tasks.size(), [&](size_t i, int worker) {
    const size_t s = task_head[i] / shape.heads;
    const size_t h = task_head[i] % shape.heads;
    MutableOperand target = out.row_range(offsets[s], offsets[s + 1] - offsets[s]);
    target.data = static_cast<unsigned char*>(target.data) + h * head_dim * (out.is_bf16 ? 2 : 4);
    HWY_DYNAMIC_DISPATCH(attend_rows)
    (shape, tasks[i], scratch.scores[static_cast<size_t>(worker)].data(), target);
  });
}

}  // namespace halflin
#endif
