#include <algorithm>
#include <cstring>

#include "halflin/base/error.h"
#include "halflin/ops/matvec_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/matvec_float.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

// How a format's elements become float32, a vector at a time.
struct F32 {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE V load(const std::byte* p) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(p));
  }
};
struct F16 {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE V load(const std::byte* p) {
    const hn::Rebind<uint16_t, Floats> bits;
    const hn::Rebind<hwy::float16_t, Floats> halves;
    const auto raw = hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p));
    return hn::PromoteTo(Floats(), hn::BitCast(halves, raw));
  }
};
struct BF16 {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE V load(const std::byte* p) {
    const hn::Rebind<uint16_t, Floats> bits;
    const hn::RebindToUnsigned<Floats> wide;
    const auto raw = hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(wide, raw)));
  }
};

// The first n elements, fewer than a vector; the other lanes are 0. Reads no byte beyond them.
template <class Format>
HWY_INLINE V load_part(const std::byte* p, size_t n) {
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  std::memcpy(lanes, p, n * Format::kBytes);
  return Format::load(lanes);
}

// Four sums hide the latency of the multiply-adds; one row is read at a time, so memory is read in
// one straight run.
template <class Format>
HWY_INLINE float dot(const std::byte* w, const float* HWY_RESTRICT x, size_t n) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const std::byte* p = w + i * Format::kBytes;
    const size_t step = lanes * Format::kBytes;
    sum0 = hn::MulAdd(Format::load(p), hn::Load(d, x + i), sum0);
    sum1 = hn::MulAdd(Format::load(p + step), hn::Load(d, x + i + lanes), sum1);
    sum2 = hn::MulAdd(Format::load(p + 2 * step), hn::Load(d, x + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(Format::load(p + 3 * step), hn::Load(d, x + i + 3 * lanes), sum3);
  }
  for (; i + lanes <= n; i += lanes) {
    sum0 = hn::MulAdd(Format::load(w + i * Format::kBytes), hn::Load(d, x + i), sum0);
  }
  if (i < n) {
    sum1 = hn::MulAdd(load_part<Format>(w + i * Format::kBytes, n - i), hn::Load(d, x + i), sum1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

template <class Format>
void rows_of(const StoredMatrix& weight, const float* bias, const MatvecInput& x, size_t begin,
             size_t end, bool accumulate, float* y) {
  for (size_t r = begin; r < end; ++r) {
    float sum = dot<Format>(weight.data + r * weight.in * Format::kBytes, x.floats(), weight.in);
    if (bias != nullptr) sum += bias[r];
    y[r] = accumulate ? y[r] + sum : sum;
  }
}

// y[0 .. n) += the sum over `rows` inputs of x[i] w[i, 0 .. n), w's rows `stride` bytes apart.
template <class Format, size_t rows>
HWY_INLINE void add_rows(const std::byte* w, size_t stride, const float* x, size_t n,
                         float* HWY_RESTRICT y) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  V factor[rows];
  for (size_t i = 0; i < rows; ++i) factor[i] = hn::Set(d, x[i]);
  size_t c = 0;
  for (; c + lanes <= n; c += lanes) {
    V sum = hn::LoadU(d, y + c);
    for (size_t i = 0; i < rows; ++i) {
      sum = hn::MulAdd(factor[i], Format::load(w + i * stride + c * Format::kBytes), sum);
    }
    hn::StoreU(sum, d, y + c);
  }
  if (c == n) return;
  HWY_ALIGN float last[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy(y + c, y + n, last);
  V sum = hn::Load(d, last);
  for (size_t i = 0; i < rows; ++i) {
    sum = hn::MulAdd(factor[i], load_part<Format>(w + i * stride + c * Format::kBytes, n - c), sum);
  }
  hn::Store(sum, d, last);
  std::copy(last, last + (n - c), y + c);
}

// Weights stored [in, out]: their rows are added up, so that memory is read in long runs.
template <class Format>
void columns_of(const StoredMatrix& weight, const float* bias, const MatvecInput& x, size_t begin,
                size_t end, bool accumulate, float* y) {
  constexpr size_t kRows = 4;
  const size_t stride = weight.out * Format::kBytes;
  const size_t n = end - begin;
  if (!accumulate) std::fill(y + begin, y + end, 0.f);
  size_t i = 0;
  for (; i + kRows <= weight.in; i += kRows) {
    add_rows<Format, kRows>(weight.data + i * stride + begin * Format::kBytes, stride,
                            x.floats() + i, n, y + begin);
  }
  for (; i < weight.in; ++i) {
    add_rows<Format, 1>(weight.data + i * stride + begin * Format::kBytes, stride, x.floats() + i,
                        n, y + begin);
  }
  if (bias != nullptr) {
    for (size_t r = begin; r < end; ++r) y[r] += bias[r];
  }
}

template <class Format>
void either(const StoredMatrix& weight, const float* bias, const MatvecInput& x, size_t begin,
            size_t end, bool accumulate, float* y) {
  const auto run = weight.in_by_out ? columns_of<Format> : rows_of<Format>;
  run(weight, bias, x, begin, end, accumulate, y);
}

void float_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x, size_t begin,
                size_t end, bool accumulate, float* y) {
  switch (weight.dtype) {
    case DType::kF16:
      return either<F16>(weight, bias, x, begin, end, accumulate, y);
    case DType::kBF16:
      return either<BF16>(weight, bias, x, begin, end, accumulate, y);
    default:
      return either<F32>(weight, bias, x, begin, end, accumulate, y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(float_rows);

void matvec_float_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x,
                       size_t begin, size_t end, bool accumulate, float* y) {
  HWY_DYNAMIC_DISPATCH(float_rows)(weight, bias, x, begin, end, accumulate, y);
}

}  // namespace halflin
#endif
