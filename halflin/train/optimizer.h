// AdamW on a model's trainable parameters, gradient clipping, and the learning rate's schedule.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halflin/base/threads.h"
#include "halflin/train/parameters.h"

namespace halflin {

// Warm-up rises linearly to the peak, reached at step `warmup` (counted from 1); then the rate
// stays or falls along a half cosine to final_share * peak at the last step.
struct Schedule {
  enum class Kind { kConstant, kCosine };
  Kind kind = Kind::kCosine;
  double peak = 1e-3;
  size_t warmup = 0;
  size_t steps = 1;
  double final_share = 0;
};
// Of step 1, 2, ..., schedule.steps.
double learning_rate(const Schedule& schedule, size_t step);

// Settings of the parameters whose name matches `pattern` ("*" any characters, "?" one; as in
// "layers.*.mlp.gate.*"). The last rule that matches counts.
struct ParameterRule {
  std::string pattern;
  bool frozen = false;
  double rate_factor = 1;              // multiplies the schedule's learning rate
  std::optional<double> weight_decay;  // instead of the optimiser's
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // of weight matrices; never of norms, biases and constants
  double clip = 1.0;           // largest norm of all gradients together; 0: no clipping
  std::vector<ParameterRule> rules;
};

// One trainable parameter with its moments and settings.
struct ParameterMoments {
  Parameter* parameter = nullptr;
  Matrix<float> first, second;  // of the parameter's shape
  double rate_factor = 1;
  double weight_decay = 0;
};

struct Optimizer {
  AdamWOptions options;
  size_t steps = 0;                       // taken so far
  std::vector<ParameterMoments> moments;  // trainable parameters, in the model's order
};

// Freezes what the rules freeze, makes all else that is trainable ready. Parameters that the caller
// froze stay frozen: they cost neither gradients nor moments. Pointers into the model last until
// the model changes. Throws Error for a rule that matches no parameter, and where none is
// trainable.
Optimizer make_optimizer(TrainModel& model, const AdamWOptions& options);

// Whether weight decay applies: matrices, not norms, biases, or a place's constant.
bool decays(const Parameter& parameter);

// Norm of all gradients together, before clipping; NaN or Inf where one of them is.
double gradient_norm(ThreadPool& pool, const Optimizer& optimizer);

// Clips, and takes one step; `norm` as gradient_norm returned it. Gradients stay as they are.
void optimizer_step(ThreadPool& pool, Optimizer& optimizer, double learning_rate, double norm);

}  // namespace halflin
