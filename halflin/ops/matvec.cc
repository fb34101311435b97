#include "halflin/ops/matvec.h"

#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/ops/matvec_rows.h"

namespace halflin {

namespace {
constexpr size_t kBlock = 32;
constexpr size_t kRowGranule = 16;  // outputs of a cache line: no two threads write the same one
size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
}  // namespace

size_t StoredMatrix::bytes() const {
  return out * in / dtype_block_elements(dtype) * dtype_block_bytes(dtype);
}

bool reads_codes(DType dtype) { return dtype_block_elements(dtype) > 1; }

bool has_matvec(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

MatvecInput::MatvecInput(size_t most)
    : floats_(1, round_up(most, kBlock)),
      codes_(1, round_up(most, kBlock)),
      scales_(1, round_up(most, kBlock) / kBlock),
      sums_(1, round_up(most, kBlock) / kBlock),
      quads_(1, round_up(most, kBlock) / 4) {}

void MatvecInput::set(std::span<const float> x, bool quantised) {
  const size_t padded = round_up(x.size(), kBlock);
  if (padded > floats_.size()) fail("an input of {} for products of {}", x.size(), floats_.size());
  size_ = x.size();
  std::copy(x.begin(), x.end(), floats_.data());
  std::fill(floats_.data() + size_, floats_.data() + padded, 0.f);
  if (quantised) {
    quantise_input(floats_.data(), padded, codes_.data(), scales_.data(), sums_.data(),
                   quads_.data());
  }
}

void matvec_rows(const StoredMatrix& weight, const float* bias, const MatvecInput& x, size_t begin,
                 size_t end, bool accumulate, float* y) {
  const size_t in = reads_codes(weight.dtype) ? round_up(x.size(), kBlock) : x.size();
  if (in != weight.in || end > weight.out) {
    fail("a product of [{}, {}], outputs up to {}, was given an input of {}", weight.in, weight.out,
         end, x.size());
  }
  const auto rows = reads_codes(weight.dtype) ? matvec_quantised_rows : matvec_float_rows;
  rows(weight, bias, x, begin, end, accumulate, y);
}

void matvec(ThreadPool& pool, std::span<const MatvecTask> tasks) {
  size_t total = 0;
  for (const MatvecTask& task : tasks) total += round_up(task.weight.out, kRowGranule);
  const size_t parts = std::min(static_cast<size_t>(pool.size()), total / kRowGranule);
  const size_t share = round_up((total + parts - 1) / std::max<size_t>(parts, 1), kRowGranule);
  pool.parallel_for(parts, [&](size_t part, int) {
    // This part's outputs, counted through all products.
    const size_t first = part * share;
    const size_t last = std::min(first + share, total);
    size_t base = 0;
    for (const MatvecTask& task : tasks) {
      const size_t begin = std::max(first, base) - base;
      const size_t end = std::min(std::max(last, base) - base, task.weight.out);
      if (begin < end) {
        matvec_rows(task.weight, task.bias, *task.x, begin, end, task.accumulate, task.y);
      }
      base += round_up(task.weight.out, kRowGranule);
    }
  });
}

}  // namespace halflin
