#include "halflin/ops/activation.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/activation.cc"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include "halflin/ops/bf16-inl.h"

#ifndef HALFLIN_ACTIVATION_ROWS
#define HALFLIN_ACTIVATION_ROWS
namespace halflin {
// Rows of the four functions; what one has no use for is empty.
struct ActivationRows {
  MatView<const float> x;   // the gate, where there is one
  MatView<const float> up;  // or empty
  MatView<const float> dy;  // of the backward ones
};
}  // namespace halflin
#endif

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

// activation(x) and its derivative.
struct ValueAndSlope {
  V value;
  V slope;
};

HWY_INLINE V logistic(V x) {
  const Floats d;
  // exp(88) is near float32's limit; beyond it the result is 0 or 1 all the same.
  const V bounded = hn::Min(hn::Max(x, hn::Set(d, -87.f)), hn::Set(d, 87.f));
  const V one = hn::Set(d, 1.f);
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(bounded))));
}

// x P(X <= x), X standard normal. The error function is Abramowitz and Stegun 7.1.26
// (within 1.5e-7).
HWY_INLINE ValueAndSlope gelu_erf(V x) {
  const Floats d;
  const V z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f));
  const V bell = hn::Exp(d, hn::Neg(hn::Min(hn::Mul(z, z), hn::Set(d, 87.f))));  // exp(-x^2/2)
  const V t = hn::Div(hn::Set(d, 1.f), hn::MulAdd(hn::Set(d, 0.3275911f), z, hn::Set(d, 1.f)));
  V p = hn::Set(d, 1.061405429f);
  p = hn::MulAdd(p, t, hn::Set(d, -1.453152027f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
  const V tail = hn::Mul(hn::Set(d, 0.5f), hn::Mul(hn::Mul(p, t), bell));  // P(X > |x|)
  const V below = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.f), tail));
  return {hn::Mul(x, below), hn::MulAdd(x, hn::Mul(hn::Set(d, 0.39894228f), bell), below)};
}

// x/2 (1 + tanh(u)) is x logistic(2 u), u = sqrt(2/pi) (x + 0.044715 x^3).
HWY_INLINE ValueAndSlope gelu_tanh(V x) {
  const Floats d;
  const V square = hn::Mul(x, x);
  const V one = hn::Set(d, 1.f);
  const V two_u =
      hn::Mul(hn::Mul(hn::Set(d, 1.5957691f), x), hn::MulAdd(hn::Set(d, 0.044715f), square, one));
  const V s = logistic(two_u);
  const V du = hn::Mul(hn::Set(d, 1.5957691f), hn::MulAdd(hn::Set(d, 0.134145f), square, one));
  const V steep = hn::Mul(hn::Mul(x, du), hn::Mul(s, hn::Sub(one, s)));
  return {hn::Mul(x, s), hn::Add(s, steep)};
}

HWY_INLINE ValueAndSlope silu(V x) {
  const Floats d;
  const V s = logistic(x);
  return {hn::Mul(x, s), hn::MulAdd(hn::Mul(x, s), hn::Sub(hn::Set(d, 1.f), s), s)};
}

HWY_INLINE ValueAndSlope relu(V x) {
  const Floats d;
  return {hn::Max(x, hn::Zero(d)), hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.f))};
}

// The first n lanes, n less than a vector; the others are 0.
HWY_INLINE V load_part(const float* from, size_t n) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy_n(from, n, lanes);
  return hn::Load(Floats(), lanes);
}

HWY_INLINE void store_part(V v, float* to, size_t n) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, Floats(), lanes);
  std::copy_n(lanes, n, to);
}

template <Activation kind>
HWY_INLINE ValueAndSlope apply(V x) {
  if constexpr (kind == Activation::kGeluErf) return gelu_erf(x);
  if constexpr (kind == Activation::kGeluTanh) return gelu_tanh(x);
  if constexpr (kind == Activation::kSilu) return silu(x);
  if constexpr (kind == Activation::kRelu) return relu(x);
  if constexpr (kind == Activation::kNone) return {x, hn::Set(Floats(), 1.f)};
}

template <Activation kind>
void forward_rows(const ActivationRows& in, MutableOperand y) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float out[HWY_MAX_BYTES / sizeof(float)];
  const bool gated = in.up.data != nullptr;
  for (size_t t = 0; t < y.rows; ++t) {
    const float* x = in.x.row(t);
    const float* up = gated ? in.up.row(t) : nullptr;
    for (size_t i = 0; i < y.cols; i += lanes) {
      const size_t n = std::min(lanes, y.cols - i);
      V value = apply<kind>(n == lanes ? hn::LoadU(d, x + i) : load_part(x + i, n)).value;
      if (gated) {
        value = hn::Mul(value, n == lanes ? hn::LoadU(d, up + i) : load_part(up + i, n));
      }
      if (y.is_bf16) {
        hn::Store(value, d, out);
        round_row(out, y.bf16_row(t) + i, n);
      } else if (n == lanes) {
        hn::StoreU(value, d, y.f32_row(t) + i);
      } else {
        store_part(value, y.f32_row(t) + i, n);
      }
    }
  }
}

template <Activation kind>
void backward_rows(const ActivationRows& in, MatView<float> dx, MatView<float> dup) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const bool gated = in.up.data != nullptr;
  for (size_t t = 0; t < dx.rows; ++t) {
    for (size_t i = 0; i < dx.cols; i += lanes) {
      const size_t n = std::min(lanes, dx.cols - i);
      const auto load = [&](MatView<const float> m) HWY_ATTR {
        return n == lanes ? hn::LoadU(d, m.row(t) + i) : load_part(m.row(t) + i, n);
      };
      const auto store = [&](V v, MatView<float> m) HWY_ATTR {
        if (n == lanes) {
          hn::StoreU(v, d, m.row(t) + i);
        } else {
          store_part(v, m.row(t) + i, n);
        }
      };
      const ValueAndSlope at = apply<kind>(load(in.x));
      const V dy = load(in.dy);
      V slope = at.slope;
      if (gated) slope = hn::Mul(slope, load(in.up));
      store(hn::Mul(dy, slope), dx);
      if (gated) store(hn::Mul(dy, at.value), dup);
    }
  }
}

void activation_rows(Activation kind, const ActivationRows& in, MutableOperand y) {
  switch (kind) {
    case Activation::kGeluErf:
      return forward_rows<Activation::kGeluErf>(in, y);
    case Activation::kGeluTanh:
      return forward_rows<Activation::kGeluTanh>(in, y);
    case Activation::kSilu:
      return forward_rows<Activation::kSilu>(in, y);
    case Activation::kRelu:
      return forward_rows<Activation::kRelu>(in, y);
    case Activation::kNone:
      return forward_rows<Activation::kNone>(in, y);
  }
}

void activation_backward_rows(Activation kind, const ActivationRows& in, MatView<float> dx,
                              MatView<float> dup) {
  switch (kind) {
    case Activation::kGeluErf:
      return backward_rows<Activation::kGeluErf>(in, dx, dup);
    case Activation::kGeluTanh:
      return backward_rows<Activation::kGeluTanh>(in, dx, dup);
    case Activation::kSilu:
      return backward_rows<Activation::kSilu>(in, dx, dup);
    case Activation::kRelu:
      return backward_rows<Activation::kRelu>(in, dx, dup);
    case Activation::kNone:
      return backward_rows<Activation::kNone>(in, dx, dup);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(activation_rows);
HWY_EXPORT(activation_backward_rows);

namespace {

constexpr size_t kRows = 16;  // of one task: a few rows suffice, wide as they are

template <class T>
MatView<T> part_of(MatView<T> m, size_t begin, size_t count) {
  return m.data == nullptr ? m : m.row_range(begin, count);
}

void forward(ThreadPool& pool, Activation kind, const ActivationRows& in, MutableOperand y) {
  pool.parallel_for((y.rows + kRows - 1) / kRows, [&](size_t task, int) {
    const size_t begin = task * kRows;
    const size_t count = std::min(kRows, y.rows - begin);
    HWY_DYNAMIC_DISPATCH(activation_rows)
    (kind, {part_of(in.x, begin, count), part_of(in.up, begin, count), {}},
     y.row_range(begin, count));
  });
}

void backward(ThreadPool& pool, Activation kind, const ActivationRows& in, MatView<float> dx,
              MatView<float> dup) {
  pool.parallel_for((dx.rows + kRows - 1) / kRows, [&](size_t task, int) {
    const size_t begin = task * kRows;
    const size_t count = std::min(kRows, dx.rows - begin);
    HWY_DYNAMIC_DISPATCH(activation_backward_rows)
    (kind,
     {part_of(in.x, begin, count), part_of(in.up, begin, count), part_of(in.dy, begin, count)},
     dx.row_range(begin, count), part_of(dup, begin, count));
  });
}

}  // namespace

void activate(ThreadPool& pool, Activation kind, MatView<const float> x, MutableOperand y) {
  forward(pool, kind, {x, {}, {}}, y);
}

void activate_backward(ThreadPool& pool, Activation kind, MatView<const float> x,
                       MatView<const float> dy, MatView<float> dx) {
  backward(pool, kind, {x, {}, dy}, dx, {});
}

void activate_gated(ThreadPool& pool, Activation kind, MatView<const float> gate,
                    MatView<const float> up, MutableOperand y) {
  forward(pool, kind, {gate, up, {}}, y);
}

void activate_gated_backward(ThreadPool& pool, Activation kind, MatView<const float> gate,
                             MatView<const float> up, MatView<const float> dy, MatView<float> dgate,
                             MatView<float> dup) {
  backward(pool, kind, {gate, up, dy}, dgate, dup);
}

}  // namespace halflin
#endif
