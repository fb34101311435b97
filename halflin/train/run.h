// A training run: batches in an order that the seed alone decides, steps, a log, and a directory
// from which a killed run goes on bit by bit.
#pragma once

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halflin/measure/perplexity.h"
#include "halflin/measure/windows.h"
#include "halflin/train/backward.h"
#include "halflin/train/optimizer.h"

namespace halflin {

struct TrainOptions {
  size_t steps = 1000;
  size_t batch = 8;       // windows of one forward and backward pass
  size_t accumulate = 1;  // passes whose gradients make one step
  Schedule schedule;      // its `steps` as above
  AdamWOptions optimizer;
  uint64_t seed = 0;  // order of the windows
  Precision precision = Precision::kF32;
  bool recompute = false;  // see TrainWorkspace
  // What is minimised; scale and penalty_scale are set for each pass.
  Objective objective;
  size_t penalty_from = 1;        // step at which the objective's penalty sets in
  size_t save_every = 500;        // steps between saved states; 0: only at the end
  size_t log_every = 1;           // steps between lines of the log
  size_t evaluate_every = 0;      // steps between evaluations on held-out text; 0: never
  size_t evaluate_windows = 128;  // of it, from its beginning
  bool quiet = false;
};

// Each pass over the text takes every window once, in an order of its own.
class WindowOrder {
 public:
  WindowOrder(size_t windows, uint64_t seed) : windows_(windows), seed_(seed) {}
  // The window that the run takes as number `position`, from 0, over all passes.
  size_t at(uint64_t position);

 private:
  size_t windows_;
  uint64_t seed_;
  uint64_t pass_ = 0;
  std::vector<size_t> order_;  // of that pass
};

struct Evaluation {
  LossSum loss;                     // of predicting the next token
  std::vector<double> window_loss;  // each window's mean
  std::vector<double> full_share;  // a layer: tokens that a gate sends through the full MLP; else 1
  std::vector<double> gate_mean;   // a layer: mean of p; else 1
};
// Mean loss on windows [0, count). `batch` windows at a time. Throws Interrupted on `stop`, Error
// where a loss is not finite.
Evaluation evaluate_windows(ThreadPool& pool, TrainModel& model, const Windows& windows,
                            size_t count, size_t batch, TrainWorkspace& workspace,
                            const std::atomic<bool>& stop);

// Files of a run, in its directory:
//   state.safetensors  trainable weights and their moments after a step; the last good ones
//   log.jsonl          one line a logged step: step, loss, grad_norm, learning_rate, tokens,
//                      tokens_per_s, and where there are any penalty, gate_mean, valid_loss
struct TrainFiles {
  std::filesystem::path directory;
  std::string identity;  // of settings, text and model: a state of another identity is refused

  std::filesystem::path state() const { return directory / "state.safetensors"; }
  std::filesystem::path log() const { return directory / "log.jsonl"; }
};

// Takes the steps that are still to be taken, from the state in the directory if there is one; the
// model's other weights must be those that the run began with. `held_out` may be null. Afterwards
// the model has its final weights, and the state is saved.
//
// Throws Error when the text is shorter than one batch, and, naming the step, when the loss or a
// gradient is not finite: the state saved last stays as it is. Throws Interrupted on `stop`, with
// the state saved.
void train(ThreadPool& pool, TrainModel& model, const Windows& text, const Windows* held_out,
           const TrainOptions& options, const TrainFiles& files, const std::atomic<bool>& stop);

// Steps whose result the directory's state holds; 0 where there is none.
size_t saved_steps(const TrainFiles& files);

}  // namespace halflin
