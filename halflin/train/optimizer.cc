#include "halflin/train/optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "halflin/base/error.h"
#include "halflin/ops/adamw.h"

namespace halflin {

namespace {

bool matches(const ParameterRule& rule, const Parameter& parameter) {
  return ::fnmatch(rule.pattern.c_str(), parameter.name.c_str(), 0) == 0;
}

}  // namespace

double learning_rate(const Schedule& schedule, size_t step) {
  if (step < schedule.warmup) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  if (schedule.kind == Schedule::Kind::kConstant) return schedule.peak;
  const size_t first = std::max<size_t>(schedule.warmup, 1);  // the step at the peak
  const double span = static_cast<double>(std::max(schedule.steps, first + 1) - first);
  const double at = std::min(static_cast<double>(step - std::min(step, first)) / span, 1.0);
  const double share = 0.5 * (1 + std::cos(std::numbers::pi * at));
  return schedule.peak * (schedule.final_share + (1 - schedule.final_share) * share);
}

bool decays(const Parameter& parameter) {
  const std::string& name = parameter.name;
  return !name.ends_with(".bias") && !name.ends_with("norm.weight") && !name.ends_with(".constant");
}

Optimizer make_optimizer(TrainModel& model, const AdamWOptions& options) {
  Optimizer optimizer;
  optimizer.options = options;
  const std::vector<Parameter*> all = parameters(model);
  for (const ParameterRule& rule : options.rules) {
    if (std::none_of(all.begin(), all.end(),
                     [&](const Parameter* p) { return matches(rule, *p); })) {
      fail("\"{}\" matches no parameter (\"{}\" is one)", rule.pattern, all.back()->name);
    }
  }
  for (Parameter* p : all) {
    if (!p->trainable()) continue;
    ParameterMoments moments;
    moments.parameter = p;
    moments.weight_decay = options.weight_decay;
    bool frozen = false;
    for (const ParameterRule& rule : options.rules) {
      if (!matches(rule, *p)) continue;
      frozen = rule.frozen;
      moments.rate_factor = rule.rate_factor;
      moments.weight_decay = rule.weight_decay.value_or(options.weight_decay);
    }
    if (frozen) {
      set_trainable(std::span<Parameter* const>(&p, 1), false);
      continue;
    }
    if (!decays(*p)) moments.weight_decay = 0;
    moments.first = Matrix<float>(p->value.rows(), p->value.cols());
    moments.second = Matrix<float>(p->value.rows(), p->value.cols());
    optimizer.moments.push_back(std::move(moments));
  }
  if (optimizer.moments.empty()) fail("nothing to train: every parameter is frozen");
  return optimizer;
}

double gradient_norm(ThreadPool& pool, const Optimizer& optimizer) {
  double sum = 0;
  for (const ParameterMoments& m : optimizer.moments) {
    sum += sum_of_squares(pool, m.parameter->gradient.span());
  }
  return std::sqrt(sum);
}

void optimizer_step(ThreadPool& pool, Optimizer& optimizer, double learning_rate, double norm) {
  const AdamWOptions& options = optimizer.options;
  ++optimizer.steps;
  const double t = static_cast<double>(optimizer.steps);
  AdamWStep step;
  step.beta2 = static_cast<float>(options.beta2);
  step.first_weight = static_cast<float>(1 - options.beta1);
  step.second_weight = static_cast<float>(1 - options.beta2);
  step.epsilon = static_cast<float>(options.epsilon);
  step.root_correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, t)));
  if (options.clip > 0 && norm > options.clip) {
    step.gradient_scale = static_cast<float>(options.clip / (norm + 1e-6));
  }
  for (ParameterMoments& m : optimizer.moments) {
    const double rate = learning_rate * m.rate_factor;
    step.shrink = static_cast<float>(1 - rate * m.weight_decay);
    step.step_size = static_cast<float>(rate / (1 - std::pow(options.beta1, t)));
    adamw_update(pool, step, m.parameter->gradient.span(), m.parameter->value.span(),
                 m.first.span(), m.second.span());
  }
}

}  // namespace halflin
