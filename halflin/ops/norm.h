// LayerNorm and RMSNorm.
#pragma once

#include "halflin/ops/linear.h"

namespace halflin {

enum class NormKind { kLayerNorm, kRmsNorm };

struct Norm {
  NormKind kind = NormKind::kLayerNorm;
  float epsilon = 1e-5f;
  std::vector<float> weight;  // [d]
  std::vector<float> bias;    // [d], or empty (RMSNorm has none)
};

// y[t] = norm(x[t]); x and y are [T, d]. Statistics are per row, in float32 over float32 input:
// LayerNorm (x - mean) / sqrt(var + eps) * weight + bias, RMSNorm x / sqrt(mean(x^2) + eps) * weight.
void normalize(ThreadPool& pool, const Norm& norm, MatView<const float> x, MutableOperand y);

}  // namespace halflin
