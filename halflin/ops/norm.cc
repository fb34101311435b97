#include "halflin/ops/norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/norm.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

// Sum of f(x[i]) over a row, f one of: identity, (x - shift)^2.
template <bool squared>
HWY_INLINE float row_sum(const float* HWY_RESTRICT x, size_t n, float shift) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto v_shift = hn::Set(d, shift);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  const auto add = [&](auto sum, size_t i) HWY_ATTR {
    const auto v = hn::Sub(hn::LoadU(d, x + i), v_shift);
    if constexpr (squared) return hn::MulAdd(v, v, sum);
    return hn::Add(v, sum);
  };
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sum0 = add(sum0, i);
    sum1 = add(sum1, i + lanes);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) {
    const float v = x[i] - shift;
    sum += squared ? v * v : v;
  }
  return sum;
}

// y = (x - shift) * scale * weight (+ bias)
HWY_INLINE void scale_row(const float* HWY_RESTRICT x, size_t n, float shift, float scale,
                          const float* HWY_RESTRICT weight, const float* HWY_RESTRICT bias,
                          float* HWY_RESTRICT y) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto v_shift = hn::Set(d, shift);
  const auto v_scale = hn::Set(d, scale);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto v = hn::Mul(hn::Sub(hn::LoadU(d, x + i), v_shift), v_scale);
    v = hn::Mul(v, hn::LoadU(d, weight + i));
    if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + i));
    hn::StoreU(v, d, y + i);
  }
  for (; i < n; ++i) {
    y[i] = (x[i] - shift) * scale * weight[i] + (bias != nullptr ? bias[i] : 0.f);
  }
}

// Rows of one block; `row` is room for one row of floats.
void normalize_rows(const Norm& norm, MatView<const float> x, MutableOperand y, float* row) {
  const float* bias = norm.bias.empty() ? nullptr : norm.bias.data();
  const float n = static_cast<float>(x.cols);
  for (size_t t = 0; t < x.rows; ++t) {
    const float* in = x.row(t);
    const float mean =
        norm.kind == NormKind::kLayerNorm ? row_sum<false>(in, x.cols, 0.f) / n : 0.f;
    const float variance = row_sum<true>(in, x.cols, mean) / n;
    const float scale = 1.f / std::sqrt(variance + norm.epsilon);
    float* out = y.is_bf16 ? row : y.f32_row(t);
    scale_row(in, x.cols, mean, scale, norm.weight.data(), bias, out);
    if (y.is_bf16) round_row(row, y.bf16_row(t), x.cols);
  }
}

// Sums over a row of g = dy * weight and of g * (x - shift), and dweight += dy * normalised x,
// dbias += dy.
struct RowSums {
  float g;
  float gx;
};
HWY_INLINE RowSums gradient_sums(const float* HWY_RESTRICT x, const float* HWY_RESTRICT dy,
                                 size_t n, float shift, float scale,
                                 const float* HWY_RESTRICT weight, float* HWY_RESTRICT dweight,
                                 float* HWY_RESTRICT dbias) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto v_shift = hn::Set(d, shift);
  const auto v_scale = hn::Set(d, scale);
  auto sum_g = hn::Zero(d);
  auto sum_gx = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), v_shift);
    const auto v_dy = hn::LoadU(d, dy + i);
    const auto g = hn::Mul(v_dy, hn::LoadU(d, weight + i));
    sum_g = hn::Add(sum_g, g);
    sum_gx = hn::MulAdd(g, centred, sum_gx);
    const auto normed = hn::Mul(centred, v_scale);
    hn::StoreU(hn::MulAdd(v_dy, normed, hn::LoadU(d, dweight + i)), d, dweight + i);
    hn::StoreU(hn::Add(v_dy, hn::LoadU(d, dbias + i)), d, dbias + i);
  }
  RowSums sums{hn::GetLane(hn::SumOfLanes(d, sum_g)), hn::GetLane(hn::SumOfLanes(d, sum_gx))};
  for (; i < n; ++i) {
    const float g = dy[i] * weight[i];
    sums.g += g;
    sums.gx += g * (x[i] - shift);
    dweight[i] += dy[i] * (x[i] - shift) * scale;
    dbias[i] += dy[i];
  }
  return sums;
}

// dx += scale * (dy * weight - offset - slope * (x - shift))
HWY_INLINE void add_gradient(const float* HWY_RESTRICT x, const float* HWY_RESTRICT dy, size_t n,
                             float shift, float scale, float offset, float slope,
                             const float* HWY_RESTRICT weight, float* HWY_RESTRICT dx) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto v_shift = hn::Set(d, shift);
  const auto v_scale = hn::Set(d, scale);
  const auto v_offset = hn::Set(d, offset);
  const auto v_slope = hn::Set(d, slope);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), v_shift);
    auto g = hn::Sub(hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i)), v_offset);
    g = hn::NegMulAdd(v_slope, centred, g);
    hn::StoreU(hn::MulAdd(g, v_scale, hn::LoadU(d, dx + i)), d, dx + i);
  }
  for (; i < n; ++i) dx[i] += scale * (dy[i] * weight[i] - offset - slope * (x[i] - shift));
}

// With r = 1 / sqrt(var + eps) and g = dy * weight: dx = r (g - mean(g) - r^2 mean(g (x - mean)) (x
// - mean)); RMSNorm has no mean and no mean(g). `sums` is [2, d], this block's dweight and dbias.
void normalize_backward_rows(const Norm& norm, MatView<const float> x, MatView<const float> dy,
                             MatView<float> dx, MatView<float> sums) {
  const bool centre = norm.kind == NormKind::kLayerNorm;
  const float n = static_cast<float>(x.cols);
  for (size_t t = 0; t < x.rows; ++t) {
    const float* in = x.row(t);
    const float mean = centre ? row_sum<false>(in, x.cols, 0.f) / n : 0.f;
    const float variance = row_sum<true>(in, x.cols, mean) / n;
    const float scale = 1.f / std::sqrt(variance + norm.epsilon);
    const RowSums row = gradient_sums(in, dy.row(t), x.cols, mean, scale, norm.weight.data(),
                                      sums.row(0), sums.row(1));
    add_gradient(in, dy.row(t), x.cols, mean, scale, centre ? row.g / n : 0.f,
                 scale * scale * row.gx / n, norm.weight.data(), dx.row(t));
  }
}

void convert_rows(MatView<const float> from, MutableOperand to) {
  for (size_t r = 0; r < from.rows; ++r) {
    if (to.is_bf16) {
      round_row(from.row(r), to.bf16_row(r), from.cols);
    } else {
      std::copy_n(from.row(r), from.cols, to.f32_row(r));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(normalize_rows);
HWY_EXPORT(normalize_backward_rows);
HWY_EXPORT(convert_rows);

void normalize(ThreadPool& pool, const Norm& norm, MatView<const float> x, MutableOperand y) {
  const size_t blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  pool.parallel_for(blocks, [&](size_t block, int) {
    thread_local std::vector<float> row;  // room for one row, kept between calls
    if (row.size() < x.cols) row.resize(x.cols);
    const size_t begin = block * kRowBlock;
    const size_t count = std::min(kRowBlock, x.rows - begin);
    HWY_DYNAMIC_DISPATCH(normalize_rows)
    (norm, x.row_range(begin, count), y.row_range(begin, count), row.data());
  });
}

void normalize_backward(ThreadPool& pool, const Norm& norm, MatView<const float> x,
                        MatView<const float> dy, MatView<float> dx, std::span<float> dweight,
                        std::span<float> dbias) {
  const size_t blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  Matrix<float> sums(2 * blocks, x.cols);
  pool.parallel_for(blocks, [&](size_t block, int) {
    const size_t begin = block * kRowBlock;
    const size_t count = std::min(kRowBlock, x.rows - begin);
    HWY_DYNAMIC_DISPATCH(normalize_backward_rows)
    (norm, x.row_range(begin, count), dy.row_range(begin, count), dx.row_range(begin, count),
     sums.view().row_range(2 * block, 2));
  });
  for (size_t block = 0; block < blocks; ++block) {
    const float* weight_sums = sums.row(2 * block);
    const float* bias_sums = sums.row(2 * block + 1);
    for (size_t i = 0; i < dweight.size(); ++i) dweight[i] += weight_sums[i];
    for (size_t i = 0; i < dbias.size(); ++i) dbias[i] += bias_sums[i];
  }
}

void convert(MatView<const float> from, MutableOperand to) {
  HWY_DYNAMIC_DISPATCH(convert_rows)(from, to);
}

}  // namespace halflin
#endif
