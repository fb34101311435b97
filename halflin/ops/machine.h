// What this machine can do at most with a pool's threads: the yardsticks of `halflin bench`.
#pragma once

#include "halflin/ops/linear.h"

namespace halflin {

// Memory that is only read, far larger than the caches, and how fast that goes.
class ReadProbe {
 public:
  explicit ReadProbe(size_t bytes = size_t{256} << 20);
  // Bytes a second of reading all of it once, each thread a part.
  double run(ThreadPool& pool);

 private:
  Matrix<float> memory_;
  float sink_ = 0;
};

// A product of 512 x 2048 with 2048 x 2048, and how fast that goes.
class ProductProbe {
 public:
  explicit ProductProbe(Precision precision);
  // Floating-point operations a second, multiply-adds as two.
  double run(ThreadPool& pool);

 private:
  Linear linear_;
  OperandBuffer x_;
  Matrix<float> y_;
};

}  // namespace halflin
