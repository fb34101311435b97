// The shape of a model's attention.
#pragma once

#include <cstddef>

namespace halflin {

struct AttentionShape {
  size_t heads = 0;     // query heads
  size_t kv_heads = 0;  // key and value heads; heads is a multiple
  size_t head_dim = 0;
  float scale = 1.f;  // on query-key products
  size_t window = 0;  // a position sees itself and the window - 1 before it; 0 = all before it
};

}  // namespace halflin
