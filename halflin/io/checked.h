// Sizes that files claim, multiplied and compared without overflow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace halflin {

// The product of a shape's dimensions (1 for a scalar), or nothing where it exceeds size_t.
inline std::optional<size_t> checked_product(std::span<const size_t> shape) {
  size_t product = 1;
  // A zero anywhere makes the product 0, whatever the others would overflow to.
  if (std::find(shape.begin(), shape.end(), size_t{0}) != shape.end()) return 0;
  for (const size_t d : shape) {
    if (__builtin_mul_overflow(product, d, &product)) return std::nullopt;
  }
  return product;
}

// "[2, 3]", for messages.
std::string shape_text(std::span<const size_t> shape);

}  // namespace halflin
