#include "halflin/model/decode_heads.h"

#include <algorithm>

namespace halflin {

namespace {

// How the outputs of a token's q, k and v lie in the stored order.
struct HeadPlaces {
  size_t q, k, v;  // of a head's first output
};
HeadPlaces head_places(const AttentionShape& a, QkvOrder order, size_t head) {
  if (order == QkvOrder::kPerHead) {
    return {3 * head * a.head_dim, (3 * head + 1) * a.head_dim, (3 * head + 2) * a.head_dim};
  }
  return {head * a.head_dim, (a.heads + head) * a.head_dim,
          (a.heads + a.kv_heads + head) * a.head_dim};
}

// One head's outputs, turned to a position. Dimensions that turn together lie side by side in
// `from` when `interleaved`, half the turning ones apart in `to`.
void turn_head(const float* from, size_t head_dim, const RopeTable& table, size_t position,
               bool interleaved, float* to) {
  const size_t half = table.cos.cols();
  for (size_t i = 0; i < half; ++i) {
    const float left = interleaved ? from[2 * i] : from[i];
    const float right = interleaved ? from[2 * i + 1] : from[i + half];
    const float cos = table.cos(position, i);
    const float sin = table.sin(position, i);
    to[i] = left * cos - right * sin;
    to[i + half] = right * cos + left * sin;
  }
  std::copy(from + 2 * half, from + head_dim, to + 2 * half);
}

}  // namespace

void turn_heads(const Model& model, size_t position, const float* projected, float* turned) {
  const AttentionShape& a = model.config.attention;
  float* keys = turned + a.heads * a.head_dim;
  float* values = keys + a.kv_heads * a.head_dim;
  const auto turn = [&](size_t from, float* to) {
    if (model.config.rope.dims == 0) {
      std::copy_n(projected + from, a.head_dim, to);
    } else {
      turn_head(projected + from, a.head_dim, model.rope, position, model.layout.interleaved_rope,
                to);
    }
  };
  for (size_t h = 0; h < a.heads; ++h) {
    const HeadPlaces from = head_places(a, model.layout.qkv_order, h);
    turn(from.q, turned + h * a.head_dim);
    if (h >= a.kv_heads) continue;
    turn(from.k, keys + h * a.head_dim);
    std::copy_n(projected + from.v, a.head_dim, values + h * a.head_dim);
  }
}

}  // namespace halflin
