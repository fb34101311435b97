// The data that tests/reference/make_analyze_fixtures.py computed its values from: same recurrence.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "halflin/base/matrix.h"
#include "tests/mlp/reference_data.h"

namespace halflin::reference {

inline constexpr size_t kTokens = 1200;
inline constexpr size_t kColumns = 6;
inline constexpr size_t kWindows = 24;
inline constexpr size_t kGroups = 40;

struct TokenData {
  Matrix<float> x{kTokens, kColumns};
  std::vector<float> delta;      // [T]
  std::vector<double> y;         // the same in float64
  std::vector<int32_t> group;    // [T]
  std::vector<uint32_t> window;  // [T]
};

inline TokenData make_token_data() {
  TokenData data;
  Lcg draw{2603};
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t j = 0; j < kColumns; ++j) {
      data.x(t, j) = static_cast<float>(draw() * static_cast<double>(j + 1));
    }
    data.x(t, 5) = data.x(t, 5) > 1 ? 1.f : 0.f;
    const auto group = static_cast<int32_t>((draw() + 0.5) * static_cast<double>(kGroups));
    const double effect = static_cast<double>(group * 7 % 11) / 11.0 - 0.5;
    const double tail = std::pow(draw() + 0.5, 8);
    data.delta.push_back(
        static_cast<float>(0.6 * effect + 0.8 * std::abs(static_cast<double>(data.x(t, 1))) -
                           0.3 * static_cast<double>(data.x(t, 5)) + 2.0 * tail + draw() - 0.5));
    data.y.push_back(static_cast<double>(data.delta.back()));
    data.group.push_back(group);
    data.window.push_back(static_cast<uint32_t>(t / (kTokens / kWindows)));
  }
  return data;
}

}  // namespace halflin::reference
