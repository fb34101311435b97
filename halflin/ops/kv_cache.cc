#include "halflin/ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halflin/base/dtype.h"
#include "halflin/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/kv_cache.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/softmax-inl.h"

#ifndef HALFLIN_KV_CACHE
#define HALFLIN_KV_CACHE
namespace halflin {
inline constexpr size_t kRun = 128;      // positions of one task
inline constexpr size_t kQueries = 4;    // queries that share one reading of keys and values
inline constexpr size_t kScorePad = 32;  // floats in two of the widest vectors

// One (kv head, run of positions) of work: the queries of the head's group.
struct CachedTask {
  const void* keys;  // of position 0
  const void* values;
  bool is_f16;
  size_t head_dim;
  size_t value_stride;
  size_t begin, end;     // positions seen
  const float* queries;  // [group, head_dim]
  size_t group;
  float scale;
  float* mixed;  // [group, value_stride], before division by the sum
  float* most;   // [group] largest score, before scaling
  float* sum;    // [group] of exp(scale (score - most))
};
}  // namespace halflin
#endif

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, KeyValueCache::kKeyBlock>;
using V = hn::Vec<Floats>;

HWY_INLINE V load(const float* p) { return hn::LoadU(Floats(), p); }
HWY_INLINE V load(const hwy::float16_t* p) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<hwy::float16_t, Floats>(), p));
}

// Vectors of sums that each query keeps: enough chains of multiply-adds to hide their latency, and
// few enough for the registers.
constexpr size_t kVectors = hn::MaxLanes(Floats()) >= 16 ? 4 : 2;

// scores[q][0 .. 16 blocks): the queries times `blocks` blocks of keys.
template <size_t queries, size_t blocks, class T>
HWY_INLINE void score_blocks(const T* keys, const float* q, size_t head_dim, float* scores,
                             size_t stride) {
  constexpr size_t kBlock = KeyValueCache::kKeyBlock;
  constexpr size_t kPerBlock = kBlock / hn::MaxLanes(Floats());
  const Floats d;
  V sum[queries][blocks * kPerBlock];
  for (auto& row : sum) {
    for (V& v : row) v = hn::Zero(d);
  }
  for (size_t i = 0; i < head_dim; ++i) {
    V query[queries];
    for (size_t r = 0; r < queries; ++r) query[r] = hn::Set(d, q[r * head_dim + i]);
    for (size_t v = 0; v < blocks * kPerBlock; ++v) {
      const V key = load(keys + v / kPerBlock * kBlock * head_dim + i * kBlock +
                         v % kPerBlock * hn::MaxLanes(d));
      for (size_t r = 0; r < queries; ++r) sum[r][v] = hn::MulAdd(query[r], key, sum[r][v]);
    }
  }
  for (size_t r = 0; r < queries; ++r) {
    for (size_t v = 0; v < blocks * kPerBlock; ++v) {
      hn::StoreU(sum[r][v], d, scores + r * stride + v * hn::MaxLanes(d));
    }
  }
}

// mixed[q][i ..] for `vectors` vectors of values from i on: the sum over positions of
// weights[q][position - begin] times the values.
template <size_t queries, size_t vectors, class T>
HWY_INLINE void mix_vectors(const CachedTask& task, const float* weights, size_t stride, size_t i,
                            float* mixed) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const T* values = static_cast<const T*>(task.values) + task.begin * task.value_stride + i;
  V sum[queries][vectors];
  for (auto& row : sum) {
    for (V& v : row) v = hn::Zero(d);
  }
  for (size_t t = 0; t < task.end - task.begin; ++t, values += task.value_stride) {
    V weight[queries];
    for (size_t r = 0; r < queries; ++r) weight[r] = hn::Set(d, weights[r * stride + t]);
    for (size_t v = 0; v < vectors; ++v) {
      const V value = load(values + v * lanes);
      for (size_t r = 0; r < queries; ++r) sum[r][v] = hn::MulAdd(weight[r], value, sum[r][v]);
    }
  }
  for (size_t r = 0; r < queries; ++r) {
    for (size_t v = 0; v < vectors; ++v) {
      hn::StoreU(sum[r][v], d, mixed + r * task.value_stride + i + v * lanes);
    }
  }
}

template <size_t queries, class T>
void attend_queries(const CachedTask& task, size_t query, float* scores, size_t stride) {
  constexpr size_t kBlock = KeyValueCache::kKeyBlock;
  constexpr size_t kBlocks = kVectors * hn::MaxLanes(Floats()) / kBlock;  // at a time
  const size_t lanes = hn::Lanes(Floats());
  const float* q = task.queries + query * task.head_dim;
  const T* keys = static_cast<const T*>(task.keys);
  const size_t first = task.begin / kBlock * kBlock;
  size_t position = first;
  if constexpr (kBlocks > 1) {
    for (; position + kBlocks * kBlock <= task.end; position += kBlocks * kBlock) {
      score_blocks<queries, kBlocks>(keys + position * task.head_dim, q, task.head_dim,
                                     scores + position - first, stride);
    }
  }
  for (; position < task.end; position += kBlock) {
    score_blocks<queries, 1>(keys + position * task.head_dim, q, task.head_dim,
                             scores + position - first, stride);
  }
  const size_t skipped = task.begin - first;
  const size_t count = task.end - task.begin;
  for (size_t r = 0; r < queries; ++r) {
    float* row = scores + r * stride + skipped;
    task.sum[query + r] = softmax_row(row, count, (count + kScorePad - 1) / kScorePad * kScorePad,
                                      task.scale, &task.most[query + r]);
  }
  float* mixed = task.mixed + query * task.value_stride;
  size_t i = 0;
  for (; i + kVectors * lanes <= task.value_stride; i += kVectors * lanes) {
    mix_vectors<queries, kVectors, T>(task, scores + skipped, stride, i, mixed);
  }
  for (; i < task.value_stride; i += lanes) {
    mix_vectors<queries, 1, T>(task, scores + skipped, stride, i, mixed);
  }
}

template <class T>
void attend_group(const CachedTask& task, float* scores, size_t stride) {
  static_assert(kQueries == 4);
  size_t query = 0;
  while (query < task.group) {
    switch (task.group - query) {
      case 1:
        attend_queries<1, T>(task, query, scores, stride);
        return;
      case 2:
        attend_queries<2, T>(task, query, scores, stride);
        return;
      case 3:
        attend_queries<3, T>(task, query, scores, stride);
        return;
      default:
        attend_queries<4, T>(task, query, scores, stride);
        query += 4;
    }
  }
}

void attend_run(const CachedTask& task, float* scores, size_t stride) {
  if (task.is_f16) {
    attend_group<hwy::float16_t>(task, scores, stride);
  } else {
    attend_group<float>(task, scores, stride);
  }
}

// Rounds n floats to float16; `to` has room for n rounded up to 16.
void round_to_f16(const float* from, size_t n, uint16_t* to) {
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> halves;
  const hn::Rebind<uint16_t, Floats> bits;
  const V most = hn::Set(d, 65504.f);
  HWY_ALIGN float last[KeyValueCache::kKeyBlock] = {};
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const float* p = from + i;
    if (i + hn::Lanes(d) > n) {
      std::copy(p, from + n, last);
      p = last;
    }
    const V v = hn::Min(hn::Max(hn::LoadU(d, p), hn::Neg(most)), most);
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(halves, v)), bits, to + i);
  }
}

void read_f16(const uint16_t* from, size_t n, float* to) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load(halves + i), d, to + i);
  for (; i < n; ++i) to[i] = f16_to_float(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(attend_run);
HWY_EXPORT(round_to_f16);
HWY_EXPORT(read_f16);

namespace {

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The positions [position, position + keys.rows) of one head, elements of type T made by convert.
template <class T, class Convert>
void store_head(MatView<const float> keys, MatView<const float> values, size_t position,
                size_t value_stride, T* to_keys, T* to_values, std::vector<T>& row,
                const Convert& convert) {
  constexpr size_t kBlock = KeyValueCache::kKeyBlock;
  const size_t head_dim = keys.cols;
  row.assign(round_up(head_dim, kBlock), T{});
  for (size_t t = 0; t < keys.rows; ++t, ++position) {
    convert(keys.row(t), head_dim, row.data());
    T* block = to_keys + position / kBlock * kBlock * head_dim + position % kBlock;
    for (size_t i = 0; i < head_dim; ++i) block[i * kBlock] = row[i];
    convert(values.row(t), head_dim, row.data());
    T* to = to_values + position * value_stride;
    std::copy_n(row.begin(), head_dim, to);
    std::fill(to + head_dim, to + value_stride, T{});
  }
}

}  // namespace

KeyValueCache::KeyValueCache(const AttentionShape& shape, size_t positions, bool is_f16)
    : kv_heads_(shape.kv_heads),
      head_dim_(shape.head_dim),
      value_stride_(round_up(shape.head_dim, kKeyBlock)),
      positions_(positions),
      padded_(round_up(positions, kKeyBlock)),
      is_f16_(is_f16) {
  const auto allocate = [&](size_t elements) {
    // Not filled: what lies beyond the positions stored enters no result.
    void* memory =
        std::aligned_alloc(64, round_up(std::max<size_t>(elements, 1), 64) * element_bytes());
    if (memory == nullptr) throw std::bad_alloc();
    return Bytes(static_cast<unsigned char*>(memory));
  };
  keys_ = allocate(kv_heads_ * key_elements());
  values_ = allocate(kv_heads_ * value_elements());
}

size_t KeyValueCache::bytes() const {
  return kv_heads_ * (key_elements() + value_elements()) * element_bytes();
}

size_t KeyValueCache::bytes_per_position() const {
  return kv_heads_ * (head_dim_ + value_stride_) * element_bytes();
}

void KeyValueCache::store(ThreadPool& pool, size_t position, MatView<const float> keys,
                          MatView<const float> values) {
  if (position + keys.rows > positions_) {
    fail("positions up to {} into a cache of {}", position + keys.rows, positions_);
  }
  // One position is too little to share out.
  const size_t tasks = keys.rows > 1 ? kv_heads_ : 1;
  pool.parallel_for(tasks, [&](size_t task, int) {
    const size_t first = tasks == 1 ? 0 : task;
    const size_t last = tasks == 1 ? kv_heads_ : task + 1;
    thread_local std::vector<float> floats;
    thread_local std::vector<uint16_t> halves;
    for (size_t h = first; h < last; ++h) {
      const auto head_keys = keys.col_range(h * head_dim_, head_dim_);
      const auto head_values = values.col_range(h * head_dim_, head_dim_);
      void* to_keys = at(keys_, h * key_elements());
      void* to_values = at(values_, h * value_elements());
      if (is_f16_) {
        store_head(head_keys, head_values, position, value_stride_, static_cast<uint16_t*>(to_keys),
                   static_cast<uint16_t*>(to_values), halves, HWY_DYNAMIC_DISPATCH(round_to_f16));
      } else {
        store_head(head_keys, head_values, position, value_stride_, static_cast<float*>(to_keys),
                   static_cast<float*>(to_values), floats,
                   [](const float* from, size_t n, float* to) { std::copy_n(from, n, to); });
      }
    }
  });
}

void KeyValueCache::read(size_t kv_head, size_t count, MatView<float> keys,
                         MatView<float> values) const {
  const auto read_run = [&](const void* from, size_t begin, size_t n, float* to) {
    if (is_f16_) {
      HWY_DYNAMIC_DISPATCH(read_f16)(static_cast<const uint16_t*>(from) + begin, n, to);
    } else {
      std::copy_n(static_cast<const float*>(from) + begin, n, to);
    }
  };
  for (size_t position = 0; position < count; position += kKeyBlock) {
    const size_t n = std::min(kKeyBlock, count - position);
    for (size_t i = 0; i < head_dim_; ++i) {
      read_run(this->keys(kv_head), position * head_dim_ + i * kKeyBlock, n,
               keys.row(i) + position);
    }
  }
  for (size_t t = 0; t < count; ++t) {
    read_run(this->values(kv_head), t * value_stride_, head_dim_, values.row(t));
  }
}

void attend_cached(ThreadPool& pool, const AttentionShape& shape, const KeyValueCache& cache,
                   size_t position, const float* queries, CachedAttentionScratch& scratch,
                   float* out) {
  const size_t group = shape.heads / shape.kv_heads;
  const size_t end = position + 1;
  const size_t begin = shape.window != 0 && end > shape.window ? end - shape.window : 0;
  const size_t first_run = begin / kRun;
  const size_t runs = (end + kRun - 1) / kRun - first_run;
  const size_t stride = cache.value_stride();
  // Of each task: mixed [group, stride], largest scores [group], sums [group].
  const size_t task_floats = round_up(group * (stride + 2), 16);
  scratch.partial.resize(std::max(scratch.partial.size(), shape.kv_heads * runs * task_floats));
  const size_t score_stride = kRun + KeyValueCache::kKeyBlock + kScorePad;
  scratch.scores.resize(static_cast<size_t>(pool.size()));
  for (Matrix<float>& scores : scratch.scores) {
    if (scores.empty()) scores = Matrix<float>(kQueries, score_stride);
  }
  const auto part = [&](size_t head, size_t run) {
    return scratch.partial.data() + (head * runs + run) * task_floats;
  };

  pool.parallel_for(shape.kv_heads * runs, [&](size_t i, int worker) {
    const size_t head = i / runs;
    const size_t run = first_run + i % runs;
    CachedTask task;
    task.keys = cache.keys(head);
    task.values = cache.values(head);
    task.is_f16 = cache.is_f16();
    task.head_dim = shape.head_dim;
    task.value_stride = stride;
    task.begin = std::max(begin, run * kRun);
    task.end = std::min(end, (run + 1) * kRun);
    task.queries = queries + head * group * shape.head_dim;
    task.group = group;
    task.scale = shape.scale;
    task.mixed = part(head, i % runs);
    task.most = task.mixed + group * stride;
    task.sum = task.most + group;
    HWY_DYNAMIC_DISPATCH(attend_run)
    (task, scratch.scores[static_cast<size_t>(worker)].data(), score_stride);
  });

  for (size_t h = 0; h < shape.heads; ++h) {
    const size_t head = h / group;
    const size_t query = h % group;
    const auto most_of = [&](size_t run) { return part(head, run)[group * stride + query]; };
    const auto sum_of = [&](size_t run) { return part(head, run)[group * (stride + 1) + query]; };
    float most = -INFINITY;
    for (size_t run = 0; run < runs; ++run) most = std::max(most, most_of(run));
    float total = 0;
    float* to = out + h * shape.head_dim;
    std::fill_n(to, shape.head_dim, 0.f);
    for (size_t run = 0; run < runs; ++run) {
      const float factor = runs == 1 ? 1.f : std::exp(shape.scale * (most_of(run) - most));
      total += factor * sum_of(run);
      const float* mixed = part(head, run) + query * stride;
      for (size_t i = 0; i < shape.head_dim; ++i) to[i] += factor * mixed[i];
    }
    for (size_t i = 0; i < shape.head_dim; ++i) to[i] /= total;
  }
}

}  // namespace halflin
#endif
