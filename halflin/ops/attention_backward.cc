#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/ops/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/attention_backward.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/multiply-inl.h"
#include "halflin/ops/softmax-inl.h"

#ifndef HALFLIN_ATTENTION_BACKWARD_BLOCKS
#define HALFLIN_ATTENTION_BACKWARD_BLOCKS
namespace halflin {
// Query rows whose scores are held at once: enough to make the sums over them (the gradients of
// keys and values) worth their loads and stores, few enough for the L2 cache.
inline constexpr size_t kGradientBlock = 48;
inline constexpr size_t kGradientPad = 32;  // floats in two of the widest vectors

// One query head of one sequence. Widths and strides are padded to whole vectors, with zeros.
struct HeadGradient {
  MatView<const float> queries, keys, values, dout;  // [length, head_dim]
  MatView<float> dqueries;                           // [length, head_dim]
  MatView<float> dkeys, dvalues;                     // [length, width], to be overwritten
  // Scratch.
  float* keys_turned;    // [head_dim, stride]
  float* values_turned;  // [head_dim, stride]
  float* keys_plain;     // [length, width]
  float* scores;         // [kGradientBlock, stride]
  float* dscores;        // [kGradientBlock, stride]
  float* query_rows;     // [kGradientBlock, width]
  float* dout_rows;      // [kGradientBlock, width]
  float* dquery_rows;    // [kGradientBlock, width]
  size_t stride;
  size_t width;
};
}  // namespace halflin
#endif

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

// Rows side by side in padded columns.
HWY_INLINE void copy_rows(MatView<const float> from, size_t width, float* HWY_RESTRICT to) {
  for (size_t r = 0; r < from.rows; ++r) {
    std::copy_n(from.row(r), from.cols, to + r * width);
    std::fill(to + r * width + from.cols, to + (r + 1) * width, 0.f);
  }
}

HWY_INLINE void turn_rows(MatView<const float> from, size_t stride, float* HWY_RESTRICT to) {
  constexpr size_t kTile = 16;
  for (size_t begin = 0; begin < from.rows; begin += kTile) {
    const size_t end = std::min(begin + kTile, from.rows);
    for (size_t i = 0; i < from.cols; ++i) {
      for (size_t t = begin; t < end; ++t) to[i * stride + t] = from(t, i);
    }
  }
  for (size_t i = 0; i < from.cols; ++i) {
    std::fill(to + i * stride + from.rows, to + (i + 1) * stride, 0.f);
  }
}

// From unnormalised probabilities e (their sum's inverse given) and dp, in place: p = e / sum, and
// ds = scale p (dp - sum of p dp). Both rows are whole vectors long; e is 0 where nothing is seen.
HWY_INLINE void softmax_gradient_row(float* HWY_RESTRICT p, float* HWY_RESTRICT dp, size_t padded,
                                     float inverse_sum, float scale) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto v_inverse = hn::Set(d, inverse_sum);
  auto sum = hn::Zero(d);
  for (size_t i = 0; i < padded; i += lanes) {
    const auto v = hn::Mul(hn::LoadU(d, p + i), v_inverse);
    hn::StoreU(v, d, p + i);
    sum = hn::MulAdd(v, hn::LoadU(d, dp + i), sum);
  }
  const auto mean = hn::SumOfLanes(d, sum);
  const auto v_scale = hn::Set(d, scale);
  for (size_t i = 0; i < padded; i += lanes) {
    const auto centred = hn::Sub(hn::LoadU(d, dp + i), mean);
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, p + i), v_scale), centred), d, dp + i);
  }
}

// With S = scale Q K^T, P = softmax(S), O = P V: dV = P^T dO, dP = dO V^T,
// dS = P (dP - rowsum(P dP)), dQ = scale dS K, dK = scale dS^T Q.
void head_gradient(const AttentionShape& shape, const HeadGradient& head) {
  const size_t length = head.queries.rows;
  const size_t head_dim = shape.head_dim;
  const size_t stride = head.stride;
  const size_t width = head.width;
  turn_rows(head.keys, stride, head.keys_turned);
  turn_rows(head.values, stride, head.values_turned);
  copy_rows(head.keys, width, head.keys_plain);
  std::fill_n(head.dkeys.data, length * width, 0.f);
  std::fill_n(head.dvalues.data, length * width, 0.f);
  for (size_t begin = 0; begin < length; begin += kGradientBlock) {
    const size_t rows = std::min(kGradientBlock, length - begin);
    // Keys that any of these rows sees: [first, last), first on a vector boundary.
    const size_t last = begin + rows;
    size_t first = 0;
    if (shape.window != 0 && begin + 1 > shape.window) {
      first = (begin + 1 - shape.window) / kGradientPad * kGradientPad;
    }
    const size_t keys = last - first;
    const size_t padded = (keys + kGradientPad - 1) / kGradientPad * kGradientPad;
    copy_rows(head.queries.row_range(begin, rows), width, head.query_rows);
    copy_rows(head.dout.row_range(begin, rows), width, head.dout_rows);
    multiply<false>(head.query_rows, width, 1, head.keys_turned + first, stride, head.scores,
                    stride, rows, keys, head_dim);
    multiply<false>(head.dout_rows, width, 1, head.values_turned + first, stride, head.dscores,
                    stride, rows, keys, head_dim);
    for (size_t r = 0; r < rows; ++r) {
      const size_t position = begin + r;
      float* p = head.scores + r * stride;
      float* dp = head.dscores + r * stride;
      if (shape.window != 0 && position + 1 > first + shape.window) {
        std::fill_n(p, position + 1 - shape.window - first, -INFINITY);
      }
      std::fill(dp + keys, dp + padded, 0.f);
      const float sum = softmax_row(p, position + 1 - first, padded, shape.scale);
      softmax_gradient_row(p, dp, padded, 1.f / sum, shape.scale);
    }
    multiply<true>(head.scores, 1, stride, head.dout_rows, width, head.dvalues.row(first), width,
                   keys, head_dim, rows);
    multiply<true>(head.dscores, 1, stride, head.query_rows, width, head.dkeys.row(first), width,
                   keys, head_dim, rows);
    multiply<false>(head.dscores, stride, 1, head.keys_plain + first * width, width,
                    head.dquery_rows, width, rows, head_dim, keys);
    for (size_t r = 0; r < rows; ++r) {
      std::copy_n(head.dquery_rows + r * width, head_dim, head.dqueries.row(begin + r));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(head_gradient);

namespace {

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

void reserve(Matrix<float>& buffer, size_t floats) {
  if (buffer.size() < floats) buffer = Matrix<float>(1, floats);
}

}  // namespace

void attend_backward(ThreadPool& pool, const AttentionShape& shape,
                     MatView<const float> queries_keys_values, std::span<const size_t> offsets,
                     MatView<const float> dout, AttentionGradientScratch& scratch,
                     MatView<float> dqueries_keys_values) {
  const size_t sequences = offsets.size() - 1;
  const size_t head_dim = shape.head_dim;
  const size_t width = round_up(head_dim, kGradientPad);
  const size_t group = shape.heads / shape.kv_heads;
  size_t longest = 0;
  for (size_t s = 0; s < sequences; ++s) longest = std::max(longest, offsets[s + 1] - offsets[s]);
  // An odd number of pads, so that rows do not fall into the same cache sets.
  const size_t stride = (round_up(longest, kGradientPad) / kGradientPad | 1) * kGradientPad;

  // Gradients of keys, then of values: [T, width] for each query head.
  const size_t plane = dout.rows * width;
  reserve(scratch.key_value, 2 * shape.heads * plane);
  scratch.workers.resize(static_cast<size_t>(pool.size()));
  for (Matrix<float>& worker : scratch.workers) {
    reserve(worker,
            2 * head_dim * stride + longest * width + kGradientBlock * (2 * stride + 3 * width));
  }
  const auto head_rows = [&](const auto& m, size_t s, size_t head) {
    return m.row_range(offsets[s], offsets[s + 1] - offsets[s])
        .col_range(head * head_dim, head_dim);
  };
  pool.parallel_for(sequences * shape.heads, [&](size_t task, int worker) {
    const size_t s = task / shape.heads;
    const size_t h = task % shape.heads;
    const size_t length = offsets[s + 1] - offsets[s];
    float* next = scratch.workers[static_cast<size_t>(worker)].data();
    const auto take = [&](size_t floats) {
      float* begin = next;
      next += floats;
      return begin;
    };
    HeadGradient head;
    head.queries = head_rows(queries_keys_values, s, h);
    head.keys = head_rows(queries_keys_values, s, shape.heads + h / group);
    head.values = head_rows(queries_keys_values, s, shape.heads + shape.kv_heads + h / group);
    head.dout = head_rows(dout, s, h);
    head.dqueries = head_rows(dqueries_keys_values, s, h);
    float* dkeys = scratch.key_value.data() + 2 * h * plane + offsets[s] * width;
    head.dkeys = {dkeys, length, width};
    head.dvalues = {dkeys + plane, length, width};
    head.stride = stride;
    head.width = width;
    head.keys_turned = take(head_dim * stride);
    head.values_turned = take(head_dim * stride);
    head.keys_plain = take(length * width);
    head.scores = take(kGradientBlock * stride);
    head.dscores = take(kGradientBlock * stride);
    head.query_rows = take(kGradientBlock * width);
    head.dout_rows = take(kGradientBlock * width);
    head.dquery_rows = take(kGradientBlock * width);
    HWY_DYNAMIC_DISPATCH(head_gradient)(shape, head);
  });
  // Query heads that share a key head add up, in order.
  const size_t blocks = (dout.rows + kRowBlock - 1) / kRowBlock;
  pool.parallel_for(2 * shape.kv_heads * blocks, [&](size_t task, int) {
    const size_t begin = task % blocks * kRowBlock;
    const size_t end = std::min(begin + kRowBlock, dout.rows);
    const size_t part = task / blocks / shape.kv_heads;  // 0: keys, 1: values
    const size_t kv = task / blocks % shape.kv_heads;
    const size_t column = (shape.heads + part * shape.kv_heads + kv) * head_dim;
    for (size_t t = begin; t < end; ++t) {
      float* to = dqueries_keys_values.row(t) + column;
      for (size_t g = 0; g < group; ++g) {
        const float* from =
            scratch.key_value.data() + (2 * (kv * group + g) + part) * plane + t * width;
        for (size_t i = 0; i < head_dim; ++i) to[i] = g == 0 ? from[i] : to[i] + from[i];
      }
    }
  });
}

}  // namespace halflin
#endif
