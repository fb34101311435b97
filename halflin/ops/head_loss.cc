#include "halflin/ops/head_loss.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/ops/dense.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halflin/ops/head_loss.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "halflin/ops/bf16-inl.h"
#include "halflin/ops/log_sum-inl.h"

#ifndef HALFLIN_HEAD_LOSS_ROW
#define HALFLIN_HEAD_LOSS_ROW
namespace halflin {
// One row of one chunk of the vocabulary, on the second visit.
struct HeadRow {
  float* logits;         // [n]; the gradient is written in their place, as float32 or bfloat16
  const float* teacher;  // [n] or null
  size_t n;
  bool to_bf16;
  float inverse_temperature;
  float log_sum;          // log sum exp(logit / temperature) over the whole vocabulary
  float teacher_log_sum;  // the same of the teacher
  float gradient_scale;
};
}  // namespace halflin
#endif

HWY_BEFORE_NAMESPACE();
namespace halflin {
namespace HWY_NAMESPACE {

void add_head_row(const float* row, size_t n, float scale, RunningSum* running) {
  add_row(row, n, scale, *running);
}

// Overwrites logits z by gradient_scale * (softmax(z) - softmax(teacher)), the teacher's part only
// where there is one. Returns the chunk's share of KL(teacher || z).
double head_row_gradient(const HeadRow& row) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kPart = 256;
  HWY_ALIGN float part[kPart];
  HWY_ALIGN float teacher[kPart];
  const auto lowest = hn::Set(d, -87.f);
  const auto inverse = hn::Set(d, row.inverse_temperature);
  const auto log_sum = hn::Set(d, row.log_sum);
  const auto teacher_log_sum = hn::Set(d, row.teacher_log_sum);
  const auto scale = hn::Set(d, row.gradient_scale);
  double divergence = 0;
  for (size_t begin = 0; begin < row.n; begin += kPart) {
    const size_t n = std::min(kPart, row.n - begin);
    const size_t padded = (n + lanes - 1) / lanes * lanes;
    std::copy_n(row.logits + begin, n, part);
    std::fill(part + n, part + padded, -INFINITY);
    if (row.teacher != nullptr) {
      std::copy_n(row.teacher + begin, n, teacher);
      std::fill(teacher + n, teacher + padded, -INFINITY);
    }
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < padded; i += lanes) {
      const auto log_p = hn::Max(hn::Sub(hn::Mul(hn::Load(d, part + i), inverse), log_sum), lowest);
      auto difference = hn::Exp(d, log_p);
      if (row.teacher != nullptr) {
        const auto log_q =
            hn::Max(hn::Sub(hn::Mul(hn::Load(d, teacher + i), inverse), teacher_log_sum), lowest);
        const auto q = hn::Exp(d, log_q);
        sum = hn::MulAdd(q, hn::Sub(log_q, log_p), sum);
        difference = hn::Sub(difference, q);
      }
      hn::Store(hn::Mul(scale, difference), d, part + i);
    }
    divergence += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    // bfloat16 values take half the room: they never reach logits that are still to be read.
    if (row.to_bf16) {
      round_row(part, reinterpret_cast<bf16*>(row.logits) + begin, n);
    } else {
      std::copy_n(part, n, row.logits + begin);
    }
  }
  return divergence;
}

}  // namespace HWY_NAMESPACE
}  // namespace halflin
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halflin {

HWY_EXPORT(add_head_row);
HWY_EXPORT(head_row_gradient);

namespace {

constexpr size_t kRows = 512;              // of one block
constexpr size_t kChunk = 4 * kHeadChunk;  // of the vocabulary; beside a teacher, one of its head
constexpr size_t kRowsTask = 8;

// What is known of one row after the first visit to all chunks.
struct Row {
  RunningSum sum;
  RunningSum teacher;
  double log_sum = 0;
  double teacher_log_sum = 0;
  int32_t label = -1;     // not 0 or more until it is drawn, when sampled
  size_t draw_chunk = 0;  // chunk of the label to be drawn
  double draw_mass = 0;   // and how far into it, as exp(logit - its chunk's max)
};

double log_of(const RunningSum& sum, float inverse_temperature) {
  return static_cast<double>(sum.max) * static_cast<double>(inverse_temperature) +
         std::log(sum.sum);
}

// Which chunk holds the label of cumulative probability `uniform`.
void choose_chunk(std::span<const RunningSum> chunks, double uniform, Row& row) {
  const double whole = row.log_sum;
  double left = uniform;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const double share = std::exp(log_of(chunks[c], 1.f) - whole);
    row.draw_chunk = c;
    row.draw_mass = left / share * chunks[c].sum;
    if (left < share) return;
    left -= share;
  }
}

size_t draw_in_chunk(std::span<const float> logits, float max, double mass) {
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += static_cast<double>(std::exp(logits[i] - max));
    if (sum > mass) return i;
  }
  // Rounding left a little over: the likeliest.
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class Block {
 public:
  Block(ThreadPool& pool, const TrainHead& head, Operand hidden, const HeadTarget& target,
        HeadLossScratch& scratch)
      : pool_(pool),
        head_(head),
        hidden_(hidden),
        target_(target),
        teacher_data_(scratch.teacher_logits.data()),
        logits_(scratch.logits.view()),
        chunk_(target.teacher != nullptr ? kHeadChunk : kChunk),
        chunks_((head.weight.rows + chunk_ - 1) / chunk_),
        inverse_temperature_(target.teacher != nullptr ? 1.f / target.temperature : 1.f),
        rows_(hidden.rows),
        chunk_sums_(target.sample_seed ? hidden.rows * chunks_ : 0) {}

  // The first visit: sums of exponentials.
  void sum_up(Random* random) {
    for (size_t c = 0; c < chunks_; ++c) {
      compute_logits_of(c);
      for_rows([&](size_t t) {
        const auto add = [&](const MatView<float>& logits, RunningSum& sum) {
          HWY_DYNAMIC_DISPATCH(add_head_row)
          (logits.row(t), width(c), inverse_temperature_, &sum);
        };
        add(logits_, rows_[t].sum);
        if (target_.teacher != nullptr) add(teacher_logits_, rows_[t].teacher);
        if (random != nullptr) add(logits_, chunk_sums_[t * chunks_ + c]);
      });
    }
    for (size_t t = 0; t < rows_.size(); ++t) {
      Row& row = rows_[t];
      row.log_sum = log_of(row.sum, inverse_temperature_);
      if (target_.teacher != nullptr) {
        row.teacher_log_sum = log_of(row.teacher, inverse_temperature_);
      }
      if (random != nullptr) {
        choose_chunk(std::span(chunk_sums_).subspan(t * chunks_, chunks_), random->uniform(), row);
      } else {
        row.label = target_.labels[t];
      }
    }
  }

  // The second visit: losses and gradients. `dhidden` may be empty.
  void differentiate(const HeadGradients& gradients, MatView<float> dhidden,
                     std::span<float> losses) {
    std::vector<double> loss(rows_.size());
    for (size_t c = 0; c < chunks_; ++c) {
      if (chunks_ > 1) compute_logits_of(c);
      for_rows([&](size_t t) { loss[t] += row_gradient(c, t, gradients.scale); });
      const size_t first = c * chunk_;
      const Operand dlogits = gradient_operand(width(c));
      const Operand weight = head_.weight.row_range(first, width(c));
      if (dhidden.data != nullptr) dense_input_gradient(pool_, dlogits, weight, c != 0, dhidden);
      if (gradients.weight.data != nullptr) {
        dense_weight_gradient(pool_, dlogits, hidden_, gradients.weight.row_range(first, width(c)));
      }
      if (!gradients.bias.empty()) add_bias_gradient(gradients.bias.subspan(first, width(c)));
    }
    for (size_t t = 0; t < rows_.size(); ++t) losses[t] = static_cast<float>(loss[t]);
  }

  int32_t label(size_t t) const { return target_.labels[t] < 0 ? -1 : rows_[t].label; }

 private:
  size_t width(size_t c) const { return std::min(chunk_, head_.weight.rows - c * chunk_); }

  template <class F>
  void for_rows(const F& f) {
    pool_.parallel_for((rows_.size() + kRowsTask - 1) / kRowsTask, [&](size_t task, int) {
      const size_t end = std::min((task + 1) * kRowsTask, rows_.size());
      for (size_t t = task * kRowsTask; t < end; ++t) f(t);
    });
  }

  void compute_logits_of(size_t c) {
    const size_t first = c * chunk_;
    dense_forward(pool_, hidden_, head_.weight.row_range(first, width(c)),
                  head_.bias.empty() ? head_.bias : head_.bias.subspan(first, width(c)), false,
                  logits_.row_range(0, rows_.size()).col_range(0, width(c)));
    if (target_.teacher == nullptr) return;
    // Rows without a gap: oneDNN 2.6 has no fast product of packed bfloat16 weights into others.
    teacher_logits_ = {teacher_data_, rows_.size(), width(c)};
    target_.teacher->chunks[c].forward(pool_, target_.teacher_hidden, teacher_logits_);
  }

  // Returns the chunk's part of row t's loss, and leaves the gradient in the logits' place.
  double row_gradient(size_t c, size_t t, float scale) {
    Row& row = rows_[t];
    float* logits = logits_.row(t);
    const bool counts = target_.labels[t] >= 0;
    const bool distils = target_.teacher != nullptr;
    double loss = 0;
    float target_logit = 0;
    if (counts && target_.sample_seed && row.draw_chunk == c) {
      const float max = chunk_sums_[t * chunks_ + c].max;
      row.label =
          static_cast<int32_t>(c * chunk_ + draw_in_chunk({logits, width(c)}, max, row.draw_mass));
    }
    const size_t column = static_cast<size_t>(row.label) - c * chunk_;
    const bool has_label = counts && !distils && row.label >= 0 && column < width(c);
    if (has_label) {
      target_logit = logits[column];
      loss = row.log_sum - static_cast<double>(target_logit);
    }
    const HeadRow part{logits,
                       distils ? teacher_logits_.row(t) : nullptr,
                       width(c),
                       hidden_.is_bf16,
                       inverse_temperature_,
                       static_cast<float>(row.log_sum),
                       static_cast<float>(row.teacher_log_sum),
                       !counts   ? 0.f
                       : distils ? scale * target_.temperature
                                 : scale};
    const double divergence = HWY_DYNAMIC_DISPATCH(head_row_gradient)(part);
    if (distils && counts) {
      const double temperature = static_cast<double>(target_.temperature);
      loss = temperature * temperature * divergence;
    }
    if (has_label) {
      const double p = std::exp(static_cast<double>(target_logit) - row.log_sum);
      const float gradient = scale * static_cast<float>(p - 1.0);
      if (hidden_.is_bf16) {
        reinterpret_cast<bf16*>(logits)[column] = to_bf16(gradient);
      } else {
        logits[column] = gradient;
      }
    }
    return loss;
  }

  Operand gradient_operand(size_t columns) const {
    Operand operand(logits_.row_range(0, rows_.size()).col_range(0, columns));
    if (hidden_.is_bf16) {
      operand.is_bf16 = true;
      operand.stride *= 2;
    }
    return operand;
  }

  void add_bias_gradient(std::span<float> bias) {
    if (!hidden_.is_bf16) {
      add_column_sums(pool_, logits_.row_range(0, rows_.size()).col_range(0, bias.size()), bias);
      return;
    }
    for (size_t t = 0; t < rows_.size(); ++t) {
      const bf16* row = reinterpret_cast<const bf16*>(logits_.row(t));
      for (size_t i = 0; i < bias.size(); ++i) bias[i] += to_float(row[i]);
    }
  }

  ThreadPool& pool_;
  const TrainHead& head_;
  Operand hidden_;
  HeadTarget target_;
  float* teacher_data_;
  MatView<float> logits_, teacher_logits_;  // of the chunk at hand
  size_t chunk_, chunks_;
  float inverse_temperature_;
  std::vector<Row> rows_;
  std::vector<RunningSum> chunk_sums_;  // [rows, chunks] when labels are sampled
};

}  // namespace

void head_losses(ThreadPool& pool, const TrainHead& head, Operand hidden, const HeadTarget& target,
                 const HeadGradients& gradients, HeadLossScratch& scratch, std::span<float> losses,
                 std::span<int32_t> drawn) {
  const size_t vocab = head.weight.rows;
  if (target.labels.size() != hidden.rows || losses.size() != hidden.rows) {
    fail("{} rows with {} labels and {} losses", hidden.rows, target.labels.size(), losses.size());
  }
  for (const int32_t label : target.labels) {
    if (label >= 0 && static_cast<size_t>(label) >= vocab) {
      fail("label {} is outside the vocabulary of {}", label, vocab);
    }
  }
  if (target.teacher != nullptr && target.teacher->vocab != vocab) {
    fail("a teacher of {} tokens for a model of {}", target.teacher->vocab, vocab);
  }
  const size_t block = std::min(kRows, hidden.rows);
  const size_t columns = std::min(kChunk, vocab);
  const auto reserve = [&](Matrix<float>& m) {
    if (m.rows() < block || m.cols() != columns) m = Matrix<float>(block, columns);
  };
  reserve(scratch.logits);
  if (target.teacher != nullptr) reserve(scratch.teacher_logits);
  std::optional<Random> random;
  if (target.sample_seed) random.emplace(*target.sample_seed, "labels");
  for (size_t begin = 0; begin < hidden.rows; begin += kRows) {
    const size_t count = std::min(kRows, hidden.rows - begin);
    HeadTarget part = target;
    part.labels = target.labels.subspan(begin, count);
    if (target.teacher != nullptr) {
      part.teacher_hidden = target.teacher_hidden.row_range(begin, count);
    }
    Block work(pool, head, hidden.row_range(begin, count), part, scratch);
    work.sum_up(random ? &*random : nullptr);
    const bool wanted = gradients.hidden.data != nullptr;
    work.differentiate(gradients,
                       wanted ? gradients.hidden.row_range(begin, count) : MatView<float>(),
                       losses.subspan(begin, count));
    for (size_t t = 0; t < count && !drawn.empty(); ++t) drawn[begin + t] = work.label(t);
  }
}

}  // namespace halflin
#endif
