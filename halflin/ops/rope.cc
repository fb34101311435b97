#include "halflin/ops/rope.h"

#include <cmath>

namespace halflin {

RopeTable make_rope_table(const Rope& rope, size_t positions) {
  const size_t half = rope.dims / 2;
  RopeTable table{Matrix<float>(positions, half), Matrix<float>(positions, half)};
  for (size_t p = 0; p < positions; ++p) {
    for (size_t i = 0; i < half; ++i) {
      // The angle is rounded to float32, as models were trained with.
      const float angle = static_cast<float>(p) * rope.frequencies[i];
      table.cos(p, i) = static_cast<float>(std::cos(static_cast<double>(angle))) * rope.scale;
      table.sin(p, i) = static_cast<float>(std::sin(static_cast<double>(angle))) * rope.scale;
    }
  }
  return table;
}

void rotate(const RopeTable& table, MatView<float> x, size_t heads, size_t head_dim,
            const size_t* positions) {
  const size_t half = table.cos.cols();
  for (size_t t = 0; t < x.rows; ++t) {
    const float* cos = table.cos.row(positions[t]);
    const float* sin = table.sin.row(positions[t]);
    for (size_t h = 0; h < heads; ++h) {
      float* a = x.row(t) + h * head_dim;
      float* b = a + half;
      for (size_t i = 0; i < half; ++i) {
        const float left = a[i];
        const float right = b[i];
        a[i] = left * cos[i] - right * sin[i];
        b[i] = right * cos[i] + left * sin[i];
      }
    }
  }
}

void rotate_back(const RopeTable& table, MatView<float> dx, size_t heads, size_t head_dim,
                 const size_t* positions) {
  const size_t half = table.cos.cols();
  for (size_t t = 0; t < dx.rows; ++t) {
    const float* cos = table.cos.row(positions[t]);
    const float* sin = table.sin.row(positions[t]);
    for (size_t h = 0; h < heads; ++h) {
      float* a = dx.row(t) + h * head_dim;
      float* b = a + half;
      for (size_t i = 0; i < half; ++i) {
        const float left = a[i];
        const float right = b[i];
        a[i] = left * cos[i] + right * sin[i];
        b[i] = right * cos[i] - left * sin[i];
      }
    }
  }
}

}  // namespace halflin
