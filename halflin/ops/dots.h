// Dot products whose bits no CPU changes: gates decide by them.
#pragma once

#include <span>

#include "halflin/ops/linear.h"

namespace halflin {

// out[t, i] = x[t] . weights[i] in float64; x is [T, d], each of `weights` [d], out [T, weights].
// Feature j is added to sum j mod 16, and the sums by halves, whatever a vector holds; a product of
// two floats is exact in float64, so a fused multiply-add rounds no differently.
void dots(Operand x, std::span<const float* const> weights, MatView<double> out);

}  // namespace halflin
