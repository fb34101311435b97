#include "halflin/train/affine.h"

namespace halflin {

namespace {

Operand rounded(TrainPass& pass, MatView<const float> m, OperandGrowth& buffer) {
  if (!pass.is_bf16) return m;
  const MutableOperand copy = buffer.view(true, m.rows, m.cols);
  convert(pass.pool, m, copy);
  return copy;
}

}  // namespace

Operand weight_operand(TrainPass& pass, const Parameter& weight) {
  return rounded(pass, weight.value.view(), pass.weight);
}

void affine_forward(TrainPass& pass, const TrainAffine& layer, Operand x, bool accumulate,
                    MatView<float> y) {
  dense_forward(pass.pool, x, weight_operand(pass, layer.weight), layer.bias.value.span(),
                accumulate, y);
}

void affine_backward(TrainPass& pass, TrainAffine& layer, Operand x, MatView<const float> dy,
                     MatView<float> dx, bool accumulate_dx) {
  if (layer.bias.trainable()) add_column_sums(pass.pool, dy, layer.bias.gradient.span());
  if (!layer.weight.trainable() && dx.data == nullptr) return;
  const Operand gradient = rounded(pass, dy, pass.gradient);
  if (layer.weight.trainable()) {
    dense_weight_gradient(pass.pool, gradient, x, layer.weight.gradient.view());
  }
  if (dx.data != nullptr) {
    dense_input_gradient(pass.pool, gradient, weight_operand(pass, layer.weight), accumulate_dx,
                         dx);
  }
}

}  // namespace halflin
