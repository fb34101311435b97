// Dense layers of a training pass, and the buffers that a pass shares.
#pragma once

#include <span>

#include "halflin/ops/dense.h"
#include "halflin/train/parameter.h"

namespace halflin {

// Buffers that grow to what is asked of them, and keep that.
struct FloatBuffer {
  Matrix<float> memory;
  MatView<float> view(size_t rows, size_t cols) {
    if (memory.size() < rows * cols) memory = Matrix<float>(rows, cols);
    return {memory.data(), rows, cols};
  }
};
struct OperandGrowth {
  Matrix<unsigned char> memory;
  MutableOperand view(bool is_bf16, size_t rows, size_t cols) {
    const size_t bytes = rows * cols * (is_bf16 ? 2 : 4);
    if (memory.size() < bytes) memory = Matrix<unsigned char>(1, bytes);
    MutableOperand operand;
    operand.data = memory.data();
    operand.is_bf16 = is_bf16;
    operand.rows = rows;
    operand.cols = cols;
    operand.stride = cols;
    return operand;
  }
};

// What all layers of one pass share.
struct TrainPass {
  ThreadPool& pool;
  bool is_bf16 = false;   // operands of matrix products; weights stay float32 and are rounded anew
  OperandGrowth& weight;  // a weight, rounded; one at a time
  OperandGrowth& gradient;  // an output's gradient, rounded; one at a time
};

// A weight as products read it; valid until the next call.
Operand weight_operand(TrainPass& pass, const Parameter& weight);

// y = x w^T + b, or y += ...
void affine_forward(TrainPass& pass, const TrainAffine& layer, Operand x, bool accumulate,
                    MatView<float> y);

// Adds to the gradients of those parameters that are trainable, and, unless dx is empty (no data),
// dx = dy w or dx += ...
void affine_backward(TrainPass& pass, TrainAffine& layer, Operand x, MatView<const float> dy,
                     MatView<float> dx, bool accumulate_dx);

}  // namespace halflin
