// Rows of a table by token id: the embedding, forward and backward.
#pragma once

#include <cstdint>
#include <span>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

// out[t] += table[ids[t]]; table [n, d], out [T, d]. Throws Error on an id outside the table.
void add_table_rows(ThreadPool& pool, MatView<const float> table, std::span<const int32_t> ids,
                    MatView<float> out);

// dtable[ids[t]] += dout[t], rows in order: the same for any number of threads.
void add_table_gradient(ThreadPool& pool, MatView<const float> dout, std::span<const int32_t> ids,
                        MatView<float> dtable);

}  // namespace halflin
