// The kernels behind matvec_rows, by kind of format.
#pragma once

#include "halflin/ops/matvec.h"

namespace halflin {

void matvec_float_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x,
                       size_t begin, size_t end, bool accumulate, float* y);
void matvec_quantised_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x,
                           size_t begin, size_t end, bool accumulate, float* y);

// Fills codes, scales, sums and minus_quads for n elements, a multiple of 32.
void quantise_input(const float* x, size_t n, int8_t* codes, float* scales, float* sums,
                    int32_t* minus_quads);

}  // namespace halflin
