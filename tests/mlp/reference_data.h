// The data that tests/reference/make_mlp_fixtures.py computed its values from: same recurrence.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "halflin/base/matrix.h"

namespace halflin::reference {

struct Lcg {
  uint64_t state;
  double operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state >> 40) * 0x1p-24 - 0.5;
  }
};

inline constexpr size_t kRows = 240;
inline constexpr size_t kFeatures = 7;
inline constexpr size_t kOutputs = 3;

struct Data {
  Matrix<float> x{kRows, kFeatures};  // feature 5 is constant
  Matrix<float> y{kRows, kOutputs};
  std::vector<float> delta = std::vector<float>(kRows);
};

inline Data make_data() {
  Data data;
  Lcg draw{12345};
  for (size_t t = 0; t < kRows; ++t) {
    double u[kFeatures];
    double x[kFeatures];
    for (double& v : u) v = draw();
    for (size_t j = 0; j < kFeatures; ++j) {
      x[j] = u[j] * static_cast<double>(j + 1) + 0.75 * u[(j + kFeatures - 1) % kFeatures] +
             3.0 * static_cast<double>(j);
    }
    x[5] = 2.5;
    for (size_t j = 0; j < kFeatures; ++j) data.x(t, j) = static_cast<float>(x[j]);
    data.y(t, 0) = static_cast<float>(x[0] * x[1] + 0.25 * x[3] + 100.0);
    data.y(t, 1) = static_cast<float>(std::abs(u[2]) * 4.0 - x[6]);
    data.y(t, 2) = static_cast<float>(u[3] + 0.5 * draw());
    data.delta[t] = static_cast<float>(0.25 * u[1] - 0.5 * u[4] + draw());
  }
  return data;
}

}  // namespace halflin::reference
