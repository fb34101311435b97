#include "halflin/measure/speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/mlp/gate.h"
#include "halflin/model/forward.h"
#include "halflin/ops/machine.h"

namespace halflin {

namespace {

template <class Run>
double seconds_of(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

size_t count_routed(const Decoder& decoder) {
  size_t count = 0;
  const MatView<const uint8_t> routes = decoder.routes();
  for (size_t t = 0; t < routes.rows; ++t) {
    for (const uint8_t way : routes.row_span(t)) count += way != 0 ? 1 : 0;
  }
  return count;
}

void run_once(Decoder& decoder, std::span<const int32_t> ids, const SpeedOptions& options,
              Speed& speed) {
  const auto layers = static_cast<double>(decoder.model().config.layers);
  decoder.rewind(0);
  speed.prefill_seconds.push_back(seconds_of([&] { decoder.prefill(ids.first(options.prompt)); }));
  speed.prefill_flops = decoder.flops();
  speed.prefill_routed =
      static_cast<double>(count_routed(decoder)) / (layers * static_cast<double>(options.prompt));
  decoder.rewind(options.depth);
  double seconds = 0;
  size_t routed = 0;
  speed.decode_flops = 0;
  speed.decode_bytes = 0;
  for (size_t i = 0; i < options.generate; ++i) {
    seconds += seconds_of([&] { decoder.step(ids[options.depth + i]); });
    speed.decode_flops += decoder.flops();
    speed.decode_bytes += static_cast<double>(decoder.bytes_read());
    routed += count_routed(decoder);
  }
  speed.decode_seconds.push_back(seconds);
  speed.decode_routed = static_cast<double>(routed) /
                        (layers * static_cast<double>(std::max<size_t>(options.generate, 1)));
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

SpeedResult measure_speed(ThreadPool& pool, Decoder& decoder, std::span<const int32_t> ids,
                          const SpeedOptions& options, Progress& progress) {
  if (options.prompt == 0 || options.depth > options.prompt ||
      ids.size() < std::max(options.prompt, options.depth + options.generate)) {
    fail("{} tokens for a prompt of {} and {} more from {}", ids.size(), options.prompt,
         options.generate, options.depth);
  }
  SpeedResult result;
  ReadProbe reads;
  ProductProbe products(decoder.model().precision);
  const auto round = [&](Speed& speed, Speed& dense, size_t repetition) {
    // In turns, and the other way round each time, so that a machine that slows down or speeds up
    // favours neither.
    for (const bool second : {false, true}) {
      const bool with_paths = second == (repetition % 2 == 1);
      if (!with_paths && !options.compare) continue;
      decoder.use_paths(with_paths);
      run_once(decoder, ids, options, with_paths ? speed : dense);
    }
    decoder.use_paths(true);
    result.read_rates.push_back(reads.run(pool));
    result.product_rates.push_back(products.run(pool));
    progress.advance(1);
  };
  Speed warm_speed, warm_dense;
  round(warm_speed, warm_dense, 0);
  result.read_rates.clear();
  result.product_rates.clear();
  for (size_t r = 0; r < options.repetitions; ++r) round(result.speed, result.dense, r);
  return result;
}

std::vector<MlpPath> stand_in_paths(ThreadPool& pool, const Model& model,
                                    std::span<const int32_t> ids, double rate, uint64_t seed) {
  const size_t d = model.config.d_model;
  auto zeros = std::make_shared<CheapPath>();
  zeros->affine = Linear(Matrix<float>(d, d).view(), false, std::vector<float>(d), model.precision);
  std::vector<MlpPath> paths(model.config.layers, MlpPath{{{zeros, std::nullopt}}});
  if (rate < 1) add_random_gates(pool, model, ids, rate, seed, paths);
  return paths;
}

void add_random_gates(ThreadPool& pool, const Model& model, std::span<const int32_t> ids,
                      double rate, uint64_t seed, std::vector<MlpPath>& paths) {
  const size_t d = model.config.d_model;
  Batch batch;
  batch.add(ids);
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), d);
  embed(model, batch, residual.view());
  for (size_t l = 0; l < paths.size(); ++l) {
    const MutableOperand x =
        attention_step(pool, model, l, batch.offsets, residual.view(), workspace);
    Random random(seed, fmt::format("stand-in gate {}", l));
    Gate gate;
    gate.name = "random";
    gate.weight.resize(d);
    for (float& w : gate.weight) w = static_cast<float>(random.normal());
    Matrix<float> rows(x.rows, d);
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t i = 0; i < d; ++i) {
        rows(t, i) = x.is_bf16 ? to_float(x.bf16_row(t)[i]) : x.f32_row(t)[i];
      }
    }
    gate.threshold = threshold_for_rate(gate_scores(pool, gate, rows.view()), rate);
    paths[l].options[0].gate = gate;
    apply_path(pool, model.layers[l].mlp, paths[l], x, true, residual.view(), workspace.mlp);
  }
}

}  // namespace halflin
