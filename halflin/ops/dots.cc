#include "halflin/ops/dots.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/dots.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kSums = 16;
using Doubles = hn::CappedTag<double, kSums>;
using V = hn::Vec<Doubles>;
constexpr size_t kLanes = hn::MaxLanes(Doubles());
constexpr size_t kVectors = kSums / kLanes;
// Rows that one weight is read for: eight sums in registers hide the multiply-adds' latency.
constexpr size_t kRows = std::max<size_t>(8 / kVectors, 1);

HWY_INLINE V load(const float* from) {
  return hn::PromoteTo(Doubles(), hn::LoadU(hn::Rebind<float, Doubles>(), from));
}
HWY_INLINE V load(const bf16* from) {
  const hn::Rebind<uint16_t, Doubles> bits;
  const hn::Rebind<uint32_t, Doubles> wide;
  const hn::Rebind<float, Doubles> floats;
  const auto raw = hn::LoadU(bits, reinterpret_cast<const uint16_t*>(from));
  const auto value = hn::BitCast(floats, hn::ShiftLeft<16>(hn::PromoteTo(wide, raw)));
  return hn::PromoteTo(Doubles(), value);
}

// The last elements, fewer than kSums, with zeros behind them.
template <class T>
HWY_INLINE void load_end(const T* from, size_t count, V (&to)[kVectors]) {
  T padded[kSums] = {};
  std::copy(from, from + count, padded);
  for (size_t v = 0; v < kVectors; ++v) to[v] = load(padded + v * kLanes);
}

// A row in float64, zeros up to a multiple of kSums.
template <class T>
HWY_INLINE void widen(const T* from, size_t d, double* to) {
  size_t j = 0;
  for (; j + kSums <= d; j += kSums) {
    for (size_t k = 0; k < kSums; k += kLanes)
      hn::StoreU(load(from + j + k), Doubles(), to + j + k);
  }
  if (j == d) return;
  V end[kVectors];
  load_end(from + j, d - j, end);
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(end[v], Doubles(), to + j + v * kLanes);
}

// out[r] = x[r] . weight: x's rows `stride` apart, out's elements `out_stride`.
template <size_t rows>
HWY_INLINE void dot_rows(const double* x, size_t stride, const float* weight, size_t d, double* out,
                         size_t out_stride) {
  V sum[rows][kVectors];
  for (auto& row : sum) {
    for (V& part : row) part = hn::Zero(Doubles());
  }
  const auto add = [&](size_t j, const V(&w)[kVectors]) HWY_ATTR {
    for (size_t r = 0; r < rows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        const V value = hn::LoadU(Doubles(), x + r * stride + j + v * kLanes);
        sum[r][v] = hn::MulAdd(value, w[v], sum[r][v]);
      }
    }
  };
  V w[kVectors];
  size_t j = 0;
  for (; j + kSums <= d; j += kSums) {
    for (size_t v = 0; v < kVectors; ++v) w[v] = load(weight + j + v * kLanes);
    add(j, w);
  }
  if (j < d) {
    load_end(weight + j, d - j, w);
    add(j, w);
  }
  for (size_t r = 0; r < rows; ++r) {
    for (size_t half = kVectors / 2; half > 0; half /= 2) {
      for (size_t v = 0; v < half; ++v) sum[r][v] = hn::Add(sum[r][v], sum[r][v + half]);
    }
    double lanes[kLanes];
    hn::StoreU(sum[r][0], Doubles(), lanes);
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    }
    out[r * out_stride] = lanes[0];
  }
}

void all_dots(Operand x, std::span<const float* const> weights, MatView<double> out) {
  const size_t stride = (x.cols + kSums - 1) / kSums * kSums;
  static thread_local Matrix<double> wide;  // scratch
  if (wide.size() < kRows * stride) wide = Matrix<double>(kRows, stride);
  for (size_t t = 0; t < x.rows; t += kRows) {
    const size_t rows = std::min(kRows, x.rows - t);
    for (size_t r = 0; r < rows; ++r) {
      const size_t at = (t + r) * x.stride;
      double* to = wide.data() + r * stride;
      if (x.is_bf16) {
        widen(static_cast<const bf16*>(x.data) + at, x.cols, to);
      } else {
        widen(static_cast<const float*>(x.data) + at, x.cols, to);
      }
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      if (rows == kRows) {
        dot_rows<kRows>(wide.data(), stride, weights[i], x.cols, out.row(t) + i, out.stride);
        continue;
      }
      for (size_t r = 0; r < rows; ++r) {
        dot_rows<1>(wide.data() + r * stride, stride, weights[i], x.cols, out.row(t + r) + i,
                    out.stride);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(all_dots);

void dots(Operand x, std::span<const float* const> weights, MatView<double> out) {
  HWY_DYNAMIC_DISPATCH(all_dots)(x, weights, out);
}

}  // namespace halflin
#endif
