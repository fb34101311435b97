// An MLP's nonlinearity, forward and backward, on whole matrices: for training, where the values
// before it are kept. (Inference applies it inside the matrix product.)
#pragma once

#include "halflin/ops/linear.h"

namespace halflin {

// y = activation(x); both [T, n].
void activate(ThreadPool& pool, Activation kind, MatView<const float> x, MutableOperand y);
// dx = dy * activation'(x); dx may be dy.
void activate_backward(ThreadPool& pool, Activation kind, MatView<const float> x,
                       MatView<const float> dy, MatView<float> dx);

// y = activation(gate) * up; all [T, n].
void activate_gated(ThreadPool& pool, Activation kind, MatView<const float> gate,
                    MatView<const float> up, MutableOperand y);
// dgate = dy * up * activation'(gate), dup = dy * activation(gate); either may be dy.
void activate_gated_backward(ThreadPool& pool, Activation kind, MatView<const float> gate,
                             MatView<const float> up, MatView<const float> dy, MatView<float> dgate,
                             MatView<float> dup);

}  // namespace halflin
