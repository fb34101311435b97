#include "halflin/ops/embedding.h"

#include <algorithm>

#include "halflin/base/error.h"

namespace halflin {

namespace {
constexpr size_t kWidth = 64;  // columns of one task: rows may repeat, columns never do
}

void add_table_rows(ThreadPool& pool, MatView<const float> table, std::span<const int32_t> ids,
                    MatView<float> out) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= table.rows) {
      fail("id {} is outside a table of {} rows", id, table.rows);
    }
  }
  pool.parallel_for((out.cols + kWidth - 1) / kWidth, [&](size_t task, int) {
    const size_t begin = task * kWidth;
    const size_t count = std::min(kWidth, out.cols - begin);
    for (size_t t = 0; t < ids.size(); ++t) {
      const float* from = table.row(static_cast<size_t>(ids[t])) + begin;
      float* to = out.row(t) + begin;
      for (size_t i = 0; i < count; ++i) to[i] += from[i];
    }
  });
}

void add_table_gradient(ThreadPool& pool, MatView<const float> dout, std::span<const int32_t> ids,
                        MatView<float> dtable) {
  pool.parallel_for((dout.cols + kWidth - 1) / kWidth, [&](size_t task, int) {
    const size_t begin = task * kWidth;
    const size_t count = std::min(kWidth, dout.cols - begin);
    for (size_t t = 0; t < ids.size(); ++t) {
      const float* from = dout.row(t) + begin;
      float* to = dtable.row(static_cast<size_t>(ids[t])) + begin;
      for (size_t i = 0; i < count; ++i) to[i] += from[i];
    }
  });
}

}  // namespace halflin
