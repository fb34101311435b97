// Dense layers for training: y = x W^T + b and its gradients, on plain row-major weights that
// change at every step.
//
// oneDNN copies a tile of plain weights into its own order inside the product; at 128 rows and more
// that costs under a tenth of the time, and packing weights anew each step would cost no less and
// hold them twice. Products are cut into tiles by their shapes alone, one single-threaded product a
// tile, so results do not depend on the number of threads.
//
// In each call all operands are float32, or all bfloat16 (sums in float32 either way).
#pragma once

#include <span>

#include "halflin/ops/linear.h"

namespace halflin {

// y = x w^T + bias, or y += ... when `accumulate`. x [T, in], w [out, in], bias [out] or empty,
// y [T, out].
void dense_forward(ThreadPool& pool, Operand x, Operand w, std::span<const float> bias,
                   bool accumulate, MatView<float> y);

// dx = dy w, or dx += ... when `accumulate`. dy [T, out], w [out, in], dx [T, in].
void dense_input_gradient(ThreadPool& pool, Operand dy, Operand w, bool accumulate,
                          MatView<float> dx);

// dw += dy^T x. dy [T, out], x [T, in], dw [out, in].
void dense_weight_gradient(ThreadPool& pool, Operand dy, Operand x, MatView<float> dw);

// db[j] += sum over t of dy(t, j): a bias' gradient. Rows are added in order.
void add_column_sums(ThreadPool& pool, MatView<const float> dy, std::span<float> db);

// Copies (and rounds, for bfloat16) all rows, in parallel; same shape.
void convert(ThreadPool& pool, MatView<const float> from, MutableOperand to);

}  // namespace halflin
