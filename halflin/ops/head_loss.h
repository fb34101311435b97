// Losses over the vocabulary with their gradients, fused with the output head: logits exist for a
// block of rows and a chunk of the vocabulary at a time, and are computed a second time rather than
// kept.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "halflin/ops/cross_entropy.h"

namespace halflin {

// A head that changes while it is trained. All operands here are of one type (see ops/dense.h).
struct TrainHead {
  Operand weight;               // [vocab, d]
  std::span<const float> bias;  // [vocab] or empty
};

// What the head's predictions are compared with, row by row.
struct HeadTarget {
  // Row t's label; -1: the row has no loss and no gradient. In the two other kinds any other value
  // marks a row that counts.
  std::span<const int32_t> labels;
  // Labels are drawn from the head's own predictions.
  std::optional<uint64_t> sample_seed;
  // KL divergence from a teacher's predictions: temperature^2 * KL(softmax(z_teacher / temperature)
  // || softmax(z / temperature)), so that gradients keep their size (Hinton et al. 2015).
  const Head* teacher = nullptr;
  Operand teacher_hidden;  // [T, d_teacher], in the teacher's operand type
  float temperature = 1.f;
};

// Where the gradients of scale * (sum of losses) go. Views left empty are not computed.
struct HeadGradients {
  float scale = 1.f;
  MatView<float> hidden;  // [T, d], overwritten
  MatView<float> weight;  // [vocab, d], added to
  std::span<float> bias;  // [vocab], added to
};

struct HeadLossScratch {
  Matrix<float> logits;
  Matrix<float> teacher_logits;
};

// losses[t] in nats, 0 where labels[t] is -1. `drawn`, where not empty, receives the sampled
// labels.
void head_losses(ThreadPool& pool, const TrainHead& head, Operand hidden, const HeadTarget& target,
                 const HeadGradients& gradients, HeadLossScratch& scratch, std::span<float> losses,
                 std::span<int32_t> drawn = {});

}  // namespace halflin
