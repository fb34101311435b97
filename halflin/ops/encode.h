// Weights into the formats that matvec reads.
#pragma once

#include <cstddef>

#include "halflin/base/dtype.h"
#include "halflin/base/matrix.h"

namespace halflin {

// Whether encode_row makes this format: F32, F16, BF16, Q8_0, Q4_0, Q4_1.
bool has_encoder(DType dtype);

// Writes n elements, whole blocks of the format, as ggml's reference code does
// (quantize_row_*_ref): Q8_0 is within half a step (largest / 127) of each element, Q4_1 within
// half a step ((largest - smallest) / 15), Q4_0 within half a step (largest / 8) or, at the end of
// the range that 4 bits lack, one; the steps are rounded to float16. `out` holds n / block elements
// x block bytes.
void encode_row(DType dtype, const float* row, size_t n, std::byte* out);

}  // namespace halflin
