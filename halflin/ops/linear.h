// Dense layers: y = x W + b through oneDNN, weights packed once.
//
// Work is cut into blocks of at most kRowBlock rows, by the number of rows alone; each block is one
// single-threaded oneDNN product. So a row's result does not depend on the number of threads, and
// blocks of activations stay in a core's own cache.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "halflin/base/dtype.h"
#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

inline constexpr size_t kRowBlock = 128;
// Rows of a block, at most kRowBlock, of a matrix of so many: a multiple of 16, so that few
// different products are compiled, and a multiple of four blocks where there are rows enough, so
// that they share out evenly over a few threads.
size_t rows_of_block(size_t rows);

// The precision that matrix products read: float32, or bfloat16 with float32 sums. Residual stream,
// norms, softmax and losses are float32 in both.
enum class Precision { kF32, kBF16 };

// Whether this CPU multiplies bfloat16 natively. Where it does not, Precision::kBF16 rounds the
// weights to bfloat16 and computes in float32: same weights, slower.
bool has_native_bf16();

// A matrix that products read: float32 or bfloat16 rows, `stride` elements apart.
struct Operand {
  const void* data = nullptr;
  bool is_bf16 = false;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  Operand() = default;
  Operand(MatView<const float> m) : data(m.data), rows(m.rows), cols(m.cols), stride(m.stride) {}
  Operand(MatView<float> m) : Operand(MatView<const float>(m)) {}
  Operand(MatView<const bf16> m)
      : data(m.data), is_bf16(true), rows(m.rows), cols(m.cols), stride(m.stride) {}

  Operand row_range(size_t begin, size_t count) const;
};

// A matrix that ops write for a later product to read.
struct MutableOperand {
  void* data = nullptr;
  bool is_bf16 = false;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  operator Operand() const;
  MutableOperand row_range(size_t begin, size_t count) const;
  float* f32_row(size_t r) const { return static_cast<float*>(data) + r * stride; }
  bf16* bf16_row(size_t r) const { return static_cast<bf16*>(data) + r * stride; }
};

// Owns an operand's elements.
class OperandBuffer {
 public:
  OperandBuffer() = default;
  OperandBuffer(Precision precision, size_t rows, size_t cols);
  // The first `rows` rows, `cols` wide and dense.
  MutableOperand view(size_t rows, size_t cols);

 private:
  bool is_bf16_ = false;
  Matrix<unsigned char> bytes_;
};

// Copies (and rounds, for bfloat16) `from` into `to`; same shape.
void convert(MatView<const float> from, MutableOperand to);

enum class Activation { kNone, kGeluErf, kGeluTanh, kSilu, kRelu };

// What happens to x W + b before it is stored, in this order; done in registers.
struct Epilogue {
  Activation activation = Activation::kNone;
  // Element-wise factor of y's shape, float32, or null: y = activation(x W + b) * factor.
  const float* factor = nullptr;
  size_t factor_stride = 0;
  // y += ... instead of y = ...
  bool accumulate = false;
};

// Packed weights of one dense layer. Copyable; copies share the packed weights.
class Linear {
 public:
  Linear() = default;
  // weight is [in, out] when `in_by_out`, else [out, in]; bias is empty or [out].
  Linear(MatView<const float> weight, bool in_by_out, std::span<const float> bias,
         Precision precision);

  bool empty() const { return state_ == nullptr; }
  size_t in() const;
  size_t out() const;
  size_t bytes() const;  // of the packed weights
  Precision precision() const;
  // The weights as they were packed (rounded in bfloat16), [out, in], and the bias, [out] or empty.
  Matrix<float> weight() const;
  std::span<const float> bias() const;

  // x [T, in] of this layer's operand type, y [T, out] float32 or operand.
  void forward(ThreadPool& pool, Operand x, MutableOperand y, const Epilogue& epilogue = {}) const;
  void forward(ThreadPool& pool, Operand x, MatView<float> y, const Epilogue& epilogue = {}) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace halflin
