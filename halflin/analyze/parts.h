// The MLP's input as the sum of what the current token brings and what its context added.
#pragma once

#include "halflin/base/matrix.h"
#include "halflin/ops/norm.h"

namespace halflin {

// Parts of each row of x, [T, d]; token + context (+ the norm's bias) is x.
struct InputParts {
  Matrix<float> token;
  Matrix<float> context;
};

// arXiv 2603.03459's way: the raw embedding (with the learned position, if any), and x minus it.
// The embedding is on the residual stream's scale, x on the norm's, so the "context" also holds
// minus most of the token. `embedding` and x are [T, d].
InputParts raw_parts(MatView<const float> embedding, MatView<const float> x);

// Before the norm: its input h is the embedding plus all that layers have written. With the
// statistics of h frozen the norm is linear, so each part goes through it alone:
//   LayerNorm  token (e - mean e) s w,  context ((h - e) - mean(h - e)) s w,  the bias apart
//   RMSNorm    token e s w,             context (h - e) s w
// with s = 1 / sqrt(var h + eps), or of the mean square.
InputParts frozen_parts(const Norm& norm, MatView<const float> embedding, MatView<const float> h);

// Sizes and directions of the parts over rows.
struct PartGeometry {
  double token_norm = 0, context_norm = 0, x_norm = 0;   // means
  double context_fraction = 0, context_fraction_sd = 0;  // |context| / |x|
  double cosine = 0, cosine_sd = 0;                      // between the parts
};
PartGeometry part_geometry(const InputParts& parts, MatView<const float> x);

}  // namespace halflin
