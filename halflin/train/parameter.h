// One tensor that training may change.
#pragma once

#include <string>

#include "halflin/base/matrix.h"

namespace halflin {

struct Parameter {
  std::string name;
  Matrix<float> value;     // vectors are [1, n]; empty: the model has no such tensor
  Matrix<float> gradient;  // of value's shape; empty: frozen

  bool exists() const { return !value.empty(); }
  bool trainable() const { return !gradient.empty(); }
};

// y = x weight^T + bias.
struct TrainAffine {
  Parameter weight;  // [out, in]
  Parameter bias;    // [1, out] or empty

  size_t in() const { return weight.value.cols(); }
  size_t out() const { return weight.value.rows(); }
  bool exists() const { return weight.exists(); }
  bool trainable() const { return weight.trainable() || bias.trainable(); }
};

}  // namespace halflin
