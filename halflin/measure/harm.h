// Harm in nats: what it costs that an MLP's output f(x_t) becomes f(x_t) + r_t, predicted for all
// layers and tokens by one backward pass of the original model.
//
// With labels y drawn from the model's own predictions, and L_y the sum of a sequence's losses,
// E[1/2 <dL_y/df_t, r_t>^2] is, to second order, the KL divergence of the model's predictions from
// those of the changed model, summed over all predictions of the sequence (Gauss and Newton). It is
// also what the loss of the text itself grows by, up to a first-order term that has mean zero where
// r is uncorrelated with x, as the residual of least squares is.
//
// The formula is of one token changed alone. Summed over the tokens of a layer it leaves out how
// their errors meet.
#pragma once

#include <atomic>
#include <filesystem>
#include <span>
#include <vector>

#include "halflin/measure/walk.h"
#include "halflin/mlp/path.h"
#include "halflin/train/parameters.h"

namespace halflin {

// Gradients dL_y/df of each token of some samples, kept in a directory, since those of all layers
// together are too large for memory: one file a layer, bfloat16 [rows of all samples, d], then the
// sha256 of that, 64 digits.
class SampledGradients {
 public:
  // `samples` must stay. Nothing is read or written yet.
  SampledGradients(std::filesystem::path directory, std::span<const Sample> samples,
                   size_t d_model);

  std::span<const Sample> samples() const { return samples_; }
  // All of the layer's gradients are there, undamaged.
  bool has(size_t layer) const;
  // Those of one sample, [rows, d]. Callable from any thread. Throws Error naming the file.
  void read(size_t layer, size_t sample, MatView<float> gradients) const;
  void remove(size_t layer) const;
  // The directory with all that is in it.
  void remove() const;

  std::filesystem::path path(size_t layer) const;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
  std::span<const Sample> samples_;
  size_t d_model_;
  std::vector<size_t> first_row_;  // [samples + 1]
};

// One backward pass over each sample, with labels drawn by the seed, for the gradients of `layers`.
// Replaces what the directory holds; each file is there whole or not at all. The same bytes for any
// number of threads. Throws Interrupted once `stop` is set, Error where a file cannot be written.
void sample_gradients(ThreadPool& pool, TrainModel& model, Precision precision,
                      std::span<const size_t> layers, uint64_t seed,
                      const SampledGradients& gradients, const std::atomic<bool>& stop, bool quiet);

// The same where the directory lacks any of them: reads the checkpoint's weights, float32, for as
// long as that takes.
void prepare_gradients(ThreadPool& pool, const Checkpoint& checkpoint, size_t max_window,
                       Precision precision, std::span<const size_t> layers, uint64_t seed,
                       const SampledGradients& gradients, const std::atomic<bool>& stop,
                       bool quiet);

// 1/2 <gradient_t, replaced_t - full_t>^2 in nats, [rows].
std::vector<double> token_harm(MatView<const float> gradients, MatView<const float> full,
                               MatView<const float> replaced);

// Harm of one layer when `path` replaces its MLP. Sinks have no part in it: where an error is as
// large as theirs a second order says nothing.
struct LayerHarm {
  std::vector<double> harm;         // [sequences] sum over the tokens, nats
  std::vector<double> energy;       // [sequences] sum of |r|^2 over the same tokens
  std::vector<double> predictions;  // [sequences]
  size_t sinks = 0;                 // tokens left out

  // c_l: nats that a unit of error energy costs. 0 where there is no error.
  double scale() const;
};

// `streams` are of gradients.samples(), as they enter the layer; they leave it. Sinks are tokens
// with |f| > sink_norm.
LayerHarm layer_harm(WalkContext& context, std::span<Stream> streams, size_t layer,
                     const CheapPath& path, double sink_norm, const SampledGradients& gradients);

}  // namespace halflin
