#include "halflin/ops/matvec.h"

#include <gtest/gtest.h>
#include <hwy/detect_targets.h>
#include <hwy/targets.h>

#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/io/tensor_file.h"
#include "tests/ops/guarded.h"
#include "tests/random_blocks.h"

namespace halflin {
namespace {

const DType kFormats[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                          DType::kQ4_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K};

// Every kind of vector that this processor has, one after the other.
class EachTarget {
 public:
  template <class Test>
  static void run(const Test& test) {
    const int64_t supported = hwy::SupportedTargets();
    for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
      const int64_t target = rest & -rest;
      if ((target & (HWY_SCALAR | HWY_EMU128)) != 0) continue;
      SCOPED_TRACE(hwy::TargetName(target));
      choose(supported & -target);  // and older ones, for files without this one
      test();
    }
    choose(0);  // all
  }

 private:
  static void choose(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// Random weights of a format, their values as io/ reads them.
struct Weights {
  Guarded bytes;
  StoredMatrix matrix;
  Matrix<float> values;  // [out, in]

  Weights(DType dtype, size_t out, size_t in, bool in_by_out, uint64_t seed)
      : bytes(StoredMatrix{dtype, nullptr, out, in, in_by_out}.bytes()),
        matrix{dtype, bytes.data(), out, in, in_by_out},
        values(out, in) {
    Random random(seed);
    const size_t size = matrix.bytes();
    fill_random_blocks(dtype, {bytes.data(), size}, 0.5f, random);
    TensorInfo tensor;
    tensor.name = "w";
    tensor.dtype = dtype;
    tensor.shape = {out, in};
    tensor.bytes = {bytes.data(), size};
    Matrix<float> stored(out, in);
    read_f32(tensor, 0, stored.span());
    for (size_t r = 0; r < out; ++r) {
      for (size_t c = 0; c < in; ++c) {
        values(r, c) = in_by_out ? stored.data()[c * out + r] : stored(r, c);
      }
    }
  }
};

std::vector<float> random_vector(size_t n, uint64_t seed) {
  Random random(seed, "x");
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(random.normal());
  return x;
}

// What the product should be: of quantised formats with the rounded x, and how far rounding may
// take it from the product with x.
struct Expected {
  std::vector<double> sums, exact, rounding, size;
};
Expected expected_of(const Weights& w, const MatvecInput& input, const std::vector<float>& x) {
  const auto& [dtype, data, out, in, in_by_out] = w.matrix;
  Expected e;
  for (size_t r = 0; r < out; ++r) {
    double exact = 0, rounded = 0, limit = 0, size = 0;
    for (size_t c = 0; c < in; ++c) {
      const double v = w.values(r, c);
      exact += v * x[c];
      size += std::abs(v * x[c]);
      if (!reads_codes(dtype)) continue;
      const double scale = input.scales()[c / 32];
      rounded += v * scale * input.codes()[c];
      limit += std::abs(v) * scale / 2;
    }
    e.sums.push_back(reads_codes(dtype) ? rounded : exact);
    e.exact.push_back(exact);
    e.rounding.push_back(limit);
    e.size.push_back(size);
  }
  return e;
}

class Matvec : public testing::TestWithParam<DType> {
 protected:
  static void check(size_t out, size_t in, bool in_by_out) {
    SCOPED_TRACE(fmt::format("[{}, {}] {}", out, in, in_by_out ? "in by out" : ""));
    const Weights w(GetParam(), out, in, in_by_out, out * 131 + in);
    const std::vector<float> x = random_vector(in, in);
    const std::vector<float> bias = random_vector(out, out + 7);
    MatvecInput input(in);
    input.set(x, reads_codes(GetParam()));
    const Expected want = expected_of(w, input, x);

    std::vector<float> y(out + 1, 3.f);
    matvec_rows(w.matrix, nullptr, input, 0, out, false, y.data());
    for (size_t r = 0; r < out; ++r) {
      const double sums = 1e-6 * want.size[r] + 1e-6;
      EXPECT_NEAR(y[r], want.sums[r], sums) << r;
      EXPECT_NEAR(y[r], want.exact[r], want.rounding[r] + sums) << r;
    }
    EXPECT_EQ(y[out], 3.f);

    // Any part gives the same bits, with a bias and onto something.
    std::vector<float> whole(out, 0.5f), parts(out, 0.5f);
    matvec_rows(w.matrix, bias.data(), input, 0, out, true, whole.data());
    for (size_t begin = 0, step = 1; begin < out; begin += step, step = step % 6 + 1) {
      matvec_rows(w.matrix, bias.data(), input, begin, std::min(begin + step, out), true,
                  parts.data());
    }
    for (size_t r = 0; r < out; ++r) {
      EXPECT_EQ(whole[r], parts[r]) << r;
      EXPECT_NEAR(whole[r], 0.5f + bias[r] + y[r], 1e-5 * want.size[r] + 1e-5) << r;
    }
  }
};

TEST_P(Matvec, EqualsDequantisedWeights) {
  const size_t block = dtype_block_elements(GetParam());
  EachTarget::run([&] {
    for (const size_t out : {1, 3, 4, 6, 17}) {
      if (block > 1) {
        for (const size_t blocks : {1, 2, 3, 18}) check(out, blocks * block, false);
      } else {
        for (const size_t in : {1, 2, 7, 16, 33, 64, 577}) {
          check(out, in, false);
          check(in, out, true);
        }
      }
    }
  });
}

TEST_P(Matvec, ThreadsDoNotMatter) {
  const size_t in = dtype_block_elements(GetParam()) == 256 ? 512 : 96;
  const std::vector<float> x = random_vector(in, 1);
  MatvecInput input(in);
  input.set(x, reads_codes(GetParam()));
  const Weights a(GetParam(), 37, in, false, 1), b(GetParam(), 5, in, false, 2);
  std::vector<float> one;
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    std::vector<float> y(42, -1.f);
    const MatvecTask tasks[] = {{a.matrix, nullptr, &input, false, y.data()},
                                {b.matrix, nullptr, &input, false, y.data() + 37}};
    matvec(pool, tasks);
    if (threads == 1) one = y;
    EXPECT_EQ(y, one) << threads;
  }
}

TEST_P(Matvec, WhatIsNotFiniteStaysSo) {
  const size_t in = dtype_block_elements(GetParam()) == 256 ? 256 : 64;
  std::vector<float> x = random_vector(in, 1);
  const Weights w(GetParam(), 4, in, false, 1);
  MatvecInput input(in);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    x[in / 2] = bad;
    input.set(x, reads_codes(GetParam()));
    std::vector<float> y(4);
    matvec_rows(w.matrix, nullptr, input, 0, 4, false, y.data());
    for (const float v : y) EXPECT_FALSE(std::isfinite(v)) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Matvec, testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(MatvecInput, RoundsToWithinHalfAScale) {
  EachTarget::run([] {
    std::vector<float> x = random_vector(96 + 5, 3);  // the last block is padded
    std::fill(x.begin() + 32, x.begin() + 64, 0.f);
    x[70] = 1e-38f;
    MatvecInput input(128);
    input.set(x, true);
    for (size_t b = 0; b < 4; ++b) {
      int64_t codes = 0, quads = 0;
      for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
        const float v = i < x.size() ? x[i] : 0.f;
        codes += input.codes()[i];
        EXPECT_NEAR(input.scales()[b] * static_cast<float>(input.codes()[i]), v,
                    input.scales()[b] * 0.5001f);
      }
      for (size_t i = 8 * b; i < 8 * b + 8; ++i) quads += input.minus_quads()[i];
      EXPECT_EQ(codes, -quads);
      EXPECT_FLOAT_EQ(input.sums()[b], input.scales()[b] * static_cast<float>(codes));
    }
    EXPECT_EQ(input.scales()[1], 0.f);
  });
}

TEST(MatvecInput, RefusesOtherSizes) {
  MatvecInput input(32);
  const std::vector<float> x(65);
  EXPECT_THROW(input.set(x, false), Error);
  input.set(std::span(x).first(31), false);
  const Weights w(DType::kF32, 2, 32, false, 1);
  float y[2];
  EXPECT_THROW(matvec_rows(w.matrix, nullptr, input, 0, 2, false, y), Error);
}

}  // namespace
}  // namespace halflin
