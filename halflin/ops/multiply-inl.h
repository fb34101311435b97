// One register-blocked matrix product for the small or oddly strided products that oneDNN is not
// made for: attention's scores and mixes, and float64 product sums. Included once per SIMD target.
//
// No include guard in the usual sense: Highway compiles this file anew for every target.
#if defined(HALFLIN_OPS_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFLIN_OPS_MULTIPLY_INL_H_
#undef HALFLIN_OPS_MULTIPLY_INL_H_
#else
#define HALFLIN_OPS_MULTIPLY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Register block: kBlockRows x two vectors of c stay in registers while k runs. Twelve sums fill
// AVX2's 16 registers, and are enough to hide the latency of two multiply-adds a cycle.
constexpr size_t kBlockRows = 6;

// One register block: c[0 .. rows) x [0 .. 2 vectors) (+)= a b.
template <size_t rows, bool accumulate, class T>
HWY_INLINE void multiply_block(const T* HWY_RESTRICT a, size_t a_row, size_t a_k,
                               const T* HWY_RESTRICT b, size_t b_row, T* HWY_RESTRICT c,
                               size_t c_row, size_t k) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  V sum0[rows];
  V sum1[rows];
  for (size_t r = 0; r < rows; ++r) {
    sum0[r] = accumulate ? hn::LoadU(d, c + r * c_row) : hn::Zero(d);
    sum1[r] = accumulate ? hn::LoadU(d, c + r * c_row + lanes) : hn::Zero(d);
  }
  for (size_t i = 0; i < k; ++i) {
    const V b0 = hn::LoadU(d, b + i * b_row);
    const V b1 = hn::LoadU(d, b + i * b_row + lanes);
    for (size_t r = 0; r < rows; ++r) {
      const V value = hn::Set(d, a[r * a_row + i * a_k]);
      sum0[r] = hn::MulAdd(value, b0, sum0[r]);
      sum1[r] = hn::MulAdd(value, b1, sum1[r]);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    hn::StoreU(sum0[r], d, c + r * c_row);
    hn::StoreU(sum1[r], d, c + r * c_row + lanes);
  }
}

// c [m, n] (+)= a [m, k] b [k, n], where a's element (r, i) is a[r * a_row + i * a_k] (so a may be
// a transpose), and b's and c's rows are b_row and c_row elements apart. n is rounded up to two
// vectors: b must be readable and c writable that far.
template <bool accumulate, class T>
HWY_INLINE void multiply(const T* a, size_t a_row, size_t a_k, const T* b, size_t b_row, T* c,
                         size_t c_row, size_t m, size_t n, size_t k) {
  const size_t width = 2 * hn::Lanes(hn::ScalableTag<T>());
  for (size_t j = 0; j < n; j += width) {
    size_t r = 0;
    for (; r + kBlockRows <= m; r += kBlockRows) {
      multiply_block<kBlockRows, accumulate>(a + r * a_row, a_row, a_k, b + j, b_row,
                                             c + r * c_row + j, c_row, k);
    }
    for (; r < m; ++r) {
      multiply_block<1, accumulate>(a + r * a_row, a_row, a_k, b + j, b_row, c + r * c_row + j,
                                    c_row, k);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#endif
