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
// LayerNorm (x - mean) / sqrt(var + eps) * weight + bias, RMSNorm x / sqrt(mean(x^2) + eps) *
// weight.
void normalize(ThreadPool& pool, const Norm& norm, MatView<const float> x, MutableOperand y);

// Gradients of y = norm(x), [T, d] each: dx += ..., and dweight += ..., dbias += ... ([d], or empty
// where not wanted). Rows are summed by blocks of kRowBlock, in order: the same for any number of
// threads.
void normalize_backward(ThreadPool& pool, const Norm& norm, MatView<const float> x,
                        MatView<const float> dy, MatView<float> dx, std::span<float> dweight,
                        std::span<float> dbias);

}  // namespace halflin
