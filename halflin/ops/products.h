// ops/: the arithmetic of a transformer as free functions on matrices; nothing here knows a model.
//
// Float64 sums of products over many rows: what every least-squares fit in the project rests on.
#pragma once

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

// c[i, j] += sum over t of x[t, i] * y[t, j]. x is [T, m], y is [T, n], c is [m, n]. The order of
// additions does not depend on the number of threads.
void accumulate_products(ThreadPool& pool, MatView<const double> x, MatView<const double> y,
                         MatView<double> c);

}  // namespace halflin
