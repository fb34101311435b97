// A single token's queries, keys and values: from the order that the file's matrices write them in
// to heads side by side, turned to their position.
#pragma once

#include "halflin/model/model.h"

namespace halflin {

// projected and turned [(heads + 2 kv_heads) head_dim]; turned is q | k | v.
void turn_heads(const Model& model, size_t position, const float* projected, float* turned);

}  // namespace halflin
