// The walk through the layers that sweeps and analyses share: residual streams that are kept from
// layer to layer, what happens at one layer's MLP, and the losses behind it.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/base/progress.h"
#include "halflin/measure/splits.h"
#include "halflin/mlp/least_squares.h"

namespace halflin {

// Thrown where a walk's `stop` was set.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// One batch's residual stream, wherever the walk is, and its dense losses.
struct Stream {
  const Sample* sample = nullptr;
  Matrix<float> residual;   // [rows, d]
  std::vector<float> base;  // [rows] losses of the dense model; empty where not needed
};

// Streams at the bottom of the model (hook_embed), one a sample.
std::vector<Stream> make_streams(const Model& model, std::span<const Sample> samples);
// Fills `base` of each stream with one pass of the whole model.
void set_base(ThreadPool& pool, const Model& model, std::span<Stream> streams, Progress& progress);
// The most rows that a batch of these samples has.
size_t most_rows(std::span<const Sample> samples);
// Rows of all batches together.
size_t count_rows(std::span<const Sample> samples);

// What one thread needs to measure one batch.
struct WalkWorker {
  Workspace workspace;
  OperandBuffer x;           // [rows, d] the MLP's input, kept while suffixes run
  Matrix<float> norm_input;  // [rows, d] what the MLP's norm read, where it is not the residual
  Matrix<float> x32;         // [rows, d] x in float32
  Matrix<float> full;        // [rows, d] the MLP's output f(x)
  Matrix<float> cheap;       // [rows, d] a path's output
  Matrix<float> other;       // [rows, d]
  Matrix<float> residual;    // [rows, d] of a variant
  std::vector<float> losses;

  WalkWorker(const Model& model, size_t rows);
};

struct WalkContext {
  ThreadPool& pool;
  const Model& model;
  std::vector<WalkWorker>& workers;  // one a thread
  const std::atomic<bool>& stop;
  Progress& progress;
};

// Progress units: one token through one layer, the head counted as so many layers.
double head_units(const Config& config);

// The rows of one batch while one layer is measured.
struct BatchView {
  Operand x;
  MatView<const float> norm_input;  // what the norm before the MLP read
  MatView<float> x32;
  MatView<float> full;
  MatView<float> cheap;
  MatView<float> other;
};

// Calls body(batch, stream, worker, view) for each batch, one a thread. In the body the stream has
// the layer's attention and not its MLP; afterwards it has left the layer, `view.full` added: the
// full MLP's output, unless the body put something else there.
using BatchBody =
    std::function<void(size_t batch, Stream& stream, WalkWorker& worker, const BatchView& view)>;
void each_batch(WalkContext& context, std::span<Stream> streams, size_t layer,
                const BatchBody& body);

// Brings the streams past `layer` without measuring.
void advance(WalkContext& context, std::span<Stream> streams, size_t layer);

// worker.residual = the stream + output, in the MLP's place.
void set_residual(const Stream& stream, MatView<const float> output, WalkWorker& worker);

// Losses when worker.residual goes on through layers layer + 1 ... and the head. [rows], valid
// until the worker is used again; the last row of each sequence predicts nothing and has 0.
std::span<const float> suffix_losses(WalkContext& context, const Stream& stream, WalkWorker& worker,
                                     size_t layer);

// A token whose MLP output is longer than this many times the median is an attention sink.
inline constexpr double kSinkNorms = 20;

// Moments of (x, f(x)) over the streams' used rows, and with `neurons` of the activations behind
// f(x), as y's columns [d, d + h). Summed batch by batch in order, so that they do not depend on
// the number of threads. The streams leave the layer.
struct LayerMoments {
  Moments moments;
  double median_norm = 0;  // of f(x)
};
// `each`, where given, sees every batch's x in order.
LayerMoments layer_moments(
    WalkContext& context, std::span<Stream> streams, size_t layer, bool neurons,
    const std::function<void(const Sample& sample, MatView<const float> x)>& each = {});

void to_float32(Operand from, MatView<float> to);
double squared_norm(std::span<const float> row);
double squared_distance(std::span<const float> a, std::span<const float> b);

}  // namespace halflin
