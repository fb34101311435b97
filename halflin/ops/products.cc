#include "halflin/ops/products.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/products.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/multiply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

// One tile of c. y's and c's tiles are copied into padded scratch, so that any width is whole
// vectors.
void accumulate_tile(MatView<const double> x, MatView<const double> y, MatView<double> c) {
  constexpr size_t kDepth = 256;  // rows of x and y a pass: x's and y's tiles stay in the L2 cache
  constexpr size_t kWidth = 64;
  const size_t width = 2 * hn::Lanes(hn::ScalableTag<double>());
  const size_t padded = (std::min(kWidth, y.cols) + width - 1) / width * width;
  Matrix<double> y_tile(kDepth, padded);
  Matrix<double> sums(c.rows, padded);
  for (size_t j = 0; j < y.cols; j += kWidth) {
    const size_t n = std::min(kWidth, y.cols - j);
    for (size_t r = 0; r < c.rows; ++r) std::copy_n(c.row(r) + j, n, sums.row(r));
    for (size_t t = 0; t < y.rows; t += kDepth) {
      const size_t depth = std::min(kDepth, y.rows - t);
      for (size_t i = 0; i < depth; ++i) std::copy_n(y.row(t + i) + j, n, y_tile.row(i));
      multiply<true>(x.row(t), 1, x.stride, y_tile.data(), padded, sums.data(), padded, c.rows, n,
                     depth);
    }
    for (size_t r = 0; r < c.rows; ++r) std::copy_n(sums.row(r), n, c.row(r) + j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(accumulate_tile);

void accumulate_products(ThreadPool& pool, MatView<const double> x, MatView<const double> y,
                         MatView<double> c) {
  constexpr size_t kTile = 96;
  const size_t row_tiles = (c.rows + kTile - 1) / kTile;
  const size_t col_tiles = (c.cols + kTile - 1) / kTile;
  pool.parallel_for(row_tiles * col_tiles, [&](size_t task, int) {
    const size_t i = task / col_tiles * kTile;
    const size_t j = task % col_tiles * kTile;
    const size_t m = std::min(kTile, c.rows - i);
    const size_t n = std::min(kTile, c.cols - j);
    HWY_DYNAMIC_DISPATCH(accumulate_tile)
    (x.col_range(i, m), y.col_range(j, n), c.row_range(i, m).col_range(j, n));
  });
}

}  // namespace halflin
#endif
