// One token's activations times weight matrices that stay as a checkpoint stores them: what
// decoding spends its time on, and why it lasts as long as reading the weights.
//
// Rows (outputs) are cut into parts, but each row is summed in the same order whatever the part, so
// results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/dtype.h"
#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

// A weight matrix in a tensor's own bytes, which need no alignment.
struct StoredMatrix {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  size_t out = 0;
  size_t in = 0;           // whole blocks of the format
  bool in_by_out = false;  // stored [in, out] (float formats alone), else [out, in]

  bool empty() const { return data == nullptr; }
  size_t bytes() const;
};

// Formats that products read as they are: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K.
bool has_matvec(DType dtype);

// The input of products. Float weights are multiplied with it in float32. For quantised weights it
// is rounded to int8 in blocks of 32: x ~ scale code, scale = max |x| / 127, so each element is off
// by at most scale / 2, 1/254 of its block's largest. The product is then that of the rounded x
// with the weights as dequantised: sums within a block are exact integers, others float32.
class MatvecInput {
 public:
  MatvecInput() = default;
  explicit MatvecInput(size_t most);  // elements

  // `quantised`: also the int8 form. x is copied; x.size() <= most.
  void set(std::span<const float> x, bool quantised);

  size_t size() const { return size_; }
  // Padded with zeros to a multiple of 32.
  const float* floats() const { return floats_.data(); }
  const int8_t* codes() const { return codes_.data(); }         // [n]
  const float* scales() const { return scales_.data(); }        // [n / 32]
  const float* sums() const { return sums_.data(); }            // [n / 32], of scale x code
  const int32_t* minus_quads() const { return quads_.data(); }  // [n / 4], minus the sum of 4 codes

 private:
  size_t size_ = 0;
  Matrix<float> floats_;
  Matrix<int8_t> codes_;
  Matrix<float> scales_;
  Matrix<float> sums_;
  Matrix<int32_t> quads_;
};

// Whether a format's products read the int8 form.
bool reads_codes(DType dtype);

// y[r] = weight[r] . x + bias[r], or y[r] += ..., for the outputs r in [begin, end); y and bias
// (null for none) are those of output 0. The last block of a quantised weight's rows may go beyond
// x's end.
void matvec_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x, size_t begin,
                 size_t end, bool accumulate, float* y);

// Products that run side by side: each thread takes its share of all their outputs.
struct MatvecTask {
  StoredMatrix weight;
  const float* bias = nullptr;  // [out] or null
  const MatvecInput* x = nullptr;
  bool accumulate = false;
  float* y = nullptr;  // [out]
};
void matvec(ThreadPool& pool, std::span<const MatvecTask> tasks);

}  // namespace halflin
