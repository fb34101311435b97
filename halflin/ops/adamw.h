// AdamW's update of one tensor, and the sum that gradient clipping needs.
#pragma once

#include <span>

#include "halflin/base/threads.h"

namespace halflin {

// One step's numbers (Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2, in
// the form of torch.optim.AdamW).
struct AdamWStep {
  float beta2 = 0.999f;
  float first_weight = 0.1f;     // 1 - beta1, which float32 would get wrong in the fifth digit
  float second_weight = 0.001f;  // 1 - beta2
  float epsilon = 1e-8f;
  float shrink = 1.f;          // 1 - learning rate * weight decay
  float step_size = 0.f;       // learning rate / (1 - beta1^step)
  float root_correction = 1;   // sqrt(1 - beta2^step)
  float gradient_scale = 1.f;  // multiplies every gradient: clipping
};

// m += (1 - beta1) (g - m), v = beta2 v + (1 - beta2) g^2,
// value = shrink * value - step_size * m / (sqrt(v) / root_correction + epsilon). All of one
// length.
void adamw_update(ThreadPool& pool, const AdamWStep& step, std::span<const float> gradient,
                  std::span<float> value, std::span<float> first, std::span<float> second);

// In float64; the same for any number of threads.
double sum_of_squares(ThreadPool& pool, std::span<const float> values);

}  // namespace halflin
