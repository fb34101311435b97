#include "halflin/measure/walk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halflin/measure/perplexity.h"

namespace halflin {

namespace {

void add(MatView<const float> from, MatView<float> to) {
  for (size_t r = 0; r < from.rows; ++r) {
    const float* source = from.row(r);
    float* target = to.row(r);
    for (size_t i = 0; i < from.cols; ++i) target[i] += source[i];
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void check_stop(const WalkContext& c) {
  if (c.stop) throw Interrupted("interrupted");
}

// Attention and the full MLP of one batch: residual becomes hook_resid_mid, and x and f(x) are in
// the worker's buffers.
BatchView enter_layer(WalkContext& c, Stream& stream, WalkWorker& worker, size_t layer) {
  check_stop(c);
  const size_t rows = stream.residual.rows();
  const size_t d = stream.residual.cols();
  MatView<const float> norm_input = stream.residual.view();
  if (c.model.config.parallel_residual) {  // the norm reads what attention is about to change
    std::copy_n(stream.residual.data(), rows * d, worker.norm_input.data());
    norm_input = {worker.norm_input.data(), rows, d};
  }
  const MutableOperand x = attention_step(c.pool, c.model, layer, stream.sample->batch.offsets,
                                          stream.residual.view(), worker.workspace);
  const MutableOperand kept = worker.x.view(rows, d);
  std::memcpy(kept.data, x.data, rows * d * (x.is_bf16 ? 2 : 4));
  BatchView view{kept,
                 norm_input,
                 {worker.x32.data(), rows, d},
                 {worker.full.data(), rows, d},
                 {worker.cheap.data(), rows, d},
                 {worker.other.data(), rows, d}};
  to_float32(view.x, view.x32);
  apply_mlp(c.pool, c.model.layers[layer].mlp, view.x, false, view.full, worker.workspace.mlp);
  return view;
}

}  // namespace

void to_float32(Operand from, MatView<float> to) {
  for (size_t r = 0; r < from.rows; ++r) {
    const auto* row =
        static_cast<const unsigned char*>(from.data) + r * from.stride * (from.is_bf16 ? 2 : 4);
    if (from.is_bf16) {
      const auto* values = reinterpret_cast<const bf16*>(row);
      for (size_t i = 0; i < from.cols; ++i) to(r, i) = to_float(values[i]);
    } else {
      std::memcpy(to.row(r), row, from.cols * sizeof(float));
    }
  }
}

double squared_norm(std::span<const float> row) {
  double sum = 0;
  for (const float v : row) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

double squared_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

std::vector<Stream> make_streams(const Model& model, std::span<const Sample> samples) {
  std::vector<Stream> streams(samples.size());
  for (size_t b = 0; b < samples.size(); ++b) {
    streams[b].sample = &samples[b];
    streams[b].residual = Matrix<float>(samples[b].batch.rows(), model.config.d_model);
    embed(model, samples[b].batch, streams[b].residual.view());
  }
  return streams;
}

void set_base(ThreadPool& pool, const Model& model, std::span<Stream> streams, Progress& progress) {
  std::vector<Batch> batches;
  for (const Stream& stream : streams) batches.push_back(stream.sample->batch);
  auto losses = batch_losses(pool, model, batches, {}, progress);
  for (size_t b = 0; b < streams.size(); ++b) streams[b].base = std::move(losses[b]);
}

size_t most_rows(std::span<const Sample> samples) {
  size_t rows = 0;
  for (const Sample& sample : samples) rows = std::max(rows, sample.batch.rows());
  return rows;
}

size_t count_rows(std::span<const Sample> samples) {
  size_t rows = 0;
  for (const Sample& sample : samples) rows += sample.batch.rows();
  return rows;
}

double head_units(const Config& config) {
  const FlopCount flops = flops_per_token(config, 256);
  return flops.head / ((flops.attention + flops.mlp) / static_cast<double>(config.layers));
}

WalkWorker::WalkWorker(const Model& model, size_t rows)
    : workspace(model, rows),
      x(model.precision, rows, model.config.d_model),
      norm_input(model.config.parallel_residual ? rows : 0, model.config.d_model),
      x32(rows, model.config.d_model),
      full(rows, model.config.d_model),
      cheap(rows, model.config.d_model),
      other(rows, model.config.d_model),
      residual(rows, model.config.d_model) {}

void each_batch(WalkContext& c, std::span<Stream> streams, size_t layer, const BatchBody& body) {
  c.pool.parallel_for(streams.size(), [&](size_t b, int w) {
    Stream& stream = streams[b];
    WalkWorker& worker = c.workers[static_cast<size_t>(w)];
    const BatchView view = enter_layer(c, stream, worker, layer);
    body(b, stream, worker, view);
    add(view.full, stream.residual.view());
    c.progress.advance(static_cast<double>(stream.residual.rows()));
  });
}

void advance(WalkContext& context, std::span<Stream> streams, size_t layer) {
  each_batch(context, streams, layer, [](size_t, Stream&, WalkWorker&, const BatchView&) {});
}

void set_residual(const Stream& stream, MatView<const float> output, WalkWorker& worker) {
  std::copy(stream.residual.span().begin(), stream.residual.span().end(), worker.residual.data());
  add(output, {worker.residual.data(), output.rows, output.cols});
}

std::span<const float> suffix_losses(WalkContext& c, const Stream& stream, WalkWorker& worker,
                                     size_t layer) {
  check_stop(c);
  const Batch& batch = stream.sample->batch;
  const MatView<float> residual(worker.residual.data(), batch.rows(), stream.residual.cols());
  run_layers(c.pool, c.model, layer + 1, batch.offsets, residual, worker.workspace);
  worker.losses.resize(batch.rows());
  final_losses(c.pool, c.model, batch, residual, worker.workspace, worker.losses);
  c.progress.advance(
      static_cast<double>(batch.rows()) *
      (static_cast<double>(c.model.config.layers - layer - 1) + head_units(c.model.config)));
  return worker.losses;
}

LayerMoments layer_moments(
    WalkContext& c, std::span<Stream> streams, size_t layer, bool neurons,
    const std::function<void(const Sample& sample, MatView<const float> x)>& each) {
  const size_t d = c.model.config.d_model;
  const size_t width = d + (neurons ? c.model.config.d_mlp : 0);
  LayerMoments out{Moments(d, width), 0};
  std::vector<double> norms;
  const auto group = static_cast<size_t>(c.pool.size());
  std::vector<Matrix<float>> inputs(group);
  std::vector<Matrix<float>> targets(group);  // f(x), and the neurons behind it
  for (size_t begin = 0; begin < streams.size(); begin += group) {
    const auto part = streams.subspan(begin, std::min(group, streams.size() - begin));
    each_batch(c, part, layer,
               [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
                 const size_t rows = stream.residual.rows();
                 inputs[b] = Matrix<float>(rows, d);
                 targets[b] = Matrix<float>(rows, width);
                 std::copy_n(view.x32.data, rows * d, inputs[b].data());
                 for (size_t t = 0; t < rows; ++t) {
                   std::copy_n(view.full.row(t), d, targets[b].row(t));
                 }
                 if (!neurons) return;
                 const MutableOperand a =
                     mlp_neurons(c.pool, c.model.layers[layer].mlp, view.x, worker.workspace.mlp);
                 to_float32(a, targets[b].view().col_range(d, a.cols));
               });
    for (size_t b = 0; b < part.size(); ++b) {
      const std::vector<uint8_t>& use = part[b].sample->use;
      out.moments.add(c.pool, inputs[b].view(), targets[b].view(), use);
      if (each) each(*part[b].sample, inputs[b].view());
      for (size_t t = 0; t < use.size(); ++t) {
        if (use[t] != 0) norms.push_back(std::sqrt(squared_norm({targets[b].row(t), d})));
      }
    }
  }
  out.median_norm = median(std::move(norms));
  return out;
}

}  // namespace halflin
