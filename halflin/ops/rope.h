// Rotary position embedding (Su et al. 2021), the "rotate half" form that Hugging Face uses.
#pragma once

#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

// Angles of one model: frequency i turns dimensions i and i + dims / 2 of a head.
struct Rope {
  size_t dims = 0;  // leading dimensions of a head that turn; 0 = no rotary positions
  std::vector<float> frequencies;  // [dims / 2], radians a position, context scaling included
  float scale = 1.f;               // factor on cos and sin (YaRN's attention factor)
};

// cos and sin of every position below the number of rows: [positions, dims / 2] each.
struct RopeTable {
  Matrix<float> cos;
  Matrix<float> sin;
};
RopeTable make_rope_table(const Rope& rope, size_t positions);

// Turns `heads` heads of `head_dim` that lie side by side in each row of x [T, >= heads *
// head_dim]. Row t is at position positions[t].
void rotate(const RopeTable& table, MatView<float> x, size_t heads, size_t head_dim,
            const size_t* positions);

// The gradient of `rotate`, in place: turns dx (the gradient of the turned heads) back.
void rotate_back(const RopeTable& table, MatView<float> dx, size_t heads, size_t head_dim,
                 const size_t* positions);

}  // namespace halflin
