#include "halflin/train/run.h"

#include <chrono>
#include <cmath>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/base/progress.h"
#include "halflin/base/random.h"
#include "halflin/measure/walk.h"
#include "halflin/train/state.h"

namespace halflin {

namespace {

using Clock = std::chrono::steady_clock;

Batch join(const Windows& windows, std::span<const size_t> indices) {
  Batch joined;
  for (const size_t index : indices) joined.add(windows.batch(index).ids);
  return joined;
}

// What one step's passes saw, added up.
struct StepSums {
  double loss = 0;
  double penalty = 0;
  double gate_mean = 0;
};

double mean_gate(const TrainModel& model, std::span<const GateUse> gates) {
  double sum = 0;
  size_t gated = 0;
  for (size_t l = 0; l < gates.size(); ++l) {
    const Route route = model.layers[l].mlp.route;
    if (route != Route::kSoft && route != Route::kHard) continue;
    sum += gates[l].mean;
    ++gated;
  }
  return gated == 0 ? 0 : sum / static_cast<double>(gated);
}

bool any_gate(const TrainModel& model) {
  for (const TrainLayer& layer : model.layers) {
    if (layer.mlp.route == Route::kSoft || layer.mlp.route == Route::kHard) return true;
  }
  return false;
}

// Tokens of one step that have a loss.
size_t predictions(const TrainOptions& options, size_t window) {
  const bool last_counts = options.objective.kind == Objective::Kind::kDistill;
  return options.batch * options.accumulate * (last_counts ? window : window - 1);
}

}  // namespace

size_t WindowOrder::at(uint64_t position) {
  const uint64_t pass = position / windows_;
  if (order_.empty() || pass != pass_) {
    pass_ = pass;
    order_.resize(windows_);
    std::iota(order_.begin(), order_.end(), size_t{0});
    Random random(seed_, fmt::format("order of windows, pass {}", pass));
    random.shuffle(std::span(order_));
  }
  return order_[position % windows_];
}

Evaluation evaluate_windows(ThreadPool& pool, TrainModel& model, const Windows& windows,
                            size_t count, size_t batch, TrainWorkspace& workspace,
                            const std::atomic<bool>& stop) {
  Evaluation result;
  const size_t layers = model.config.layers;
  result.full_share.assign(layers, 0);
  result.gate_mean.assign(layers, 0);
  double rows = 0;
  for (size_t begin = 0; begin < count; begin += batch) {
    if (stop) throw Interrupted("interrupted");
    std::vector<size_t> indices(std::min(batch, count - begin));
    std::iota(indices.begin(), indices.end(), begin);
    const Batch joined = join(windows, indices);
    const PassResult pass = evaluate(pool, model, joined, {}, workspace);
    result.loss.add(pass.losses, joined.offsets);
    for (size_t s = 0; s < indices.size(); ++s) {
      LossSum window;
      window.add(std::span(pass.losses).subspan(joined.offsets[s]),
                 std::vector<size_t>{0, joined.offsets[s + 1] - joined.offsets[s]});
      if (!std::isfinite(window.sum)) {
        fail("{}: window {}: expected a finite loss, found {}", windows.name(), begin + s,
             window.sum);
      }
      result.window_loss.push_back(window.mean());
    }
    const auto weight = static_cast<double>(joined.rows());
    for (size_t l = 0; l < layers; ++l) {
      const Route route = model.layers[l].mlp.route;
      const bool gated = route == Route::kSoft || route == Route::kHard;
      result.full_share[l] += weight * (gated ? pass.gates[l].full : 1.0);
      result.gate_mean[l] += weight * (gated ? pass.gates[l].mean : 1.0);
    }
    rows += weight;
  }
  for (size_t l = 0; l < layers && rows > 0; ++l) {
    result.full_share[l] /= rows;
    result.gate_mean[l] /= rows;
  }
  return result;
}

size_t saved_steps(const TrainFiles& files) {
  return std::filesystem::exists(files.state()) ? state_steps(files.state()) : 0;
}

void train(ThreadPool& pool, TrainModel& model, const Windows& text, const Windows* held_out,
           const TrainOptions& options, const TrainFiles& files, const std::atomic<bool>& stop) {
  if (text.count() < options.batch) {
    fail("{}: too short: {} windows of {} tokens, a batch has {}", text.name(), text.count(),
         text.window(), options.batch);
  }
  Optimizer optimizer = make_optimizer(model, options.optimizer);
  if (std::filesystem::exists(files.state())) {
    load_state(files.state(), files.identity, optimizer);
    if (optimizer.steps > options.steps) {
      fail("{}: holds {} steps, more than the {} asked for", files.state().string(),
           optimizer.steps, options.steps);
    }
  }
  TrainLog log(files.log(), optimizer.steps);
  const auto save = [&] {
    log.sync();  // first: a state's log reaches up to it
    save_state(pool, optimizer, files.identity, files.state());
  };
  TrainWorkspace workspace;
  workspace.precision = options.precision;
  workspace.recompute = options.recompute;
  WindowOrder order(text.count(), options.seed);
  const size_t windows_a_step = options.batch * options.accumulate;
  const size_t tokens_a_step = windows_a_step * text.window();
  const bool gated = any_gate(model);
  Objective objective = options.objective;
  objective.scale = 1.f / static_cast<float>(predictions(options, text.window()));
  objective.penalty_scale = 1.f / static_cast<float>(options.accumulate);
  Progress progress("train", static_cast<double>((options.steps - optimizer.steps) * tokens_a_step),
                    options.quiet);
  Clock::time_point last_line = Clock::now();
  size_t steps_since = 0;

  while (optimizer.steps < options.steps) {
    const size_t step = optimizer.steps + 1;
    if (stop) {
      save();
      throw Interrupted("interrupted");
    }
    objective.penalty = step < options.penalty_from ? GatePenalty() : options.objective.penalty;
    zero_gradients(pool, model);
    StepSums sums;
    for (size_t part = 0; part < options.accumulate; ++part) {
      std::vector<size_t> indices(options.batch);
      for (size_t b = 0; b < options.batch; ++b) {
        indices[b] = order.at((step - 1) * windows_a_step + part * options.batch + b);
      }
      objective.seed = options.seed + step * options.accumulate + part;
      const PassResult pass = backward(pool, model, join(text, indices), objective, workspace);
      const double share = 1.0 / static_cast<double>(options.accumulate);
      sums.loss += pass.loss_sum;
      sums.penalty += share * pass.penalty;
      sums.gate_mean += share * mean_gate(model, pass.gates);
    }
    const double loss = sums.loss / static_cast<double>(predictions(options, text.window()));
    const double norm = gradient_norm(pool, optimizer);
    if (!std::isfinite(loss) || !std::isfinite(norm)) {
      fail("step {}: the loss is {}, the gradient's norm {}: training diverged; {}", step, loss,
           norm,
           std::filesystem::exists(files.state())
               ? fmt::format("{} holds step {}", files.state().string(), saved_steps(files))
               : "no state had been saved yet");
    }
    const double rate = learning_rate(options.schedule, step);
    optimizer_step(pool, optimizer, rate, norm);

    ++steps_since;
    const double seconds = std::chrono::duration<double>(Clock::now() - last_line).count();
    const double speed = static_cast<double>(steps_since * tokens_a_step) / seconds;
    const bool last = step == options.steps;
    const bool evaluates = held_out != nullptr && options.evaluate_every != 0 &&
                           (step % options.evaluate_every == 0 || last);
    if (step % options.log_every == 0 || last || evaluates) {
      nlohmann::json line = {{"step", step},
                             {"loss", loss},
                             {"grad_norm", norm},
                             {"learning_rate", rate},
                             {"tokens", step * tokens_a_step},
                             {"tokens_per_s", std::round(speed * 10) / 10}};
      if (gated) {
        line["penalty"] = sums.penalty;
        line["gate_mean"] = sums.gate_mean;
      }
      if (evaluates) {
        const size_t count = std::min(held_out->count(), options.evaluate_windows);
        line["valid_loss"] =
            evaluate_windows(pool, model, *held_out, count, options.batch, workspace, stop)
                .loss.mean();
      }
      log.append(line);
      last_line = Clock::now();
      steps_since = 0;
    }
    progress.advance(static_cast<double>(tokens_a_step),
                     fmt::format("step {} of {}, loss {:.4f}, {:.0f} tokens/s", step, options.steps,
                                 loss, speed));
    if (last || (options.save_every != 0 && step % options.save_every == 0)) save();
  }
}

}  // namespace halflin
