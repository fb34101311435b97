#include "halflin/measure/sweep.h"

#include <algorithm>

#include "halflin/measure/layer_sweep.h"

namespace halflin {

bool SweepOptions::paper_gates() const {
  return std::any_of(gates.begin(), gates.end(), [](const auto& name) { return name != "harm"; });
}

bool SweepOptions::harm_gate() const {
  return std::find(gates.begin(), gates.end(), "harm") != gates.end();
}

namespace {

SweepBaseline make_baseline(const std::vector<Stream>& streams, const SweepOptions& options) {
  SweepBaseline baseline;
  for (const Stream& stream : streams) {
    const std::vector<size_t>& offsets = stream.sample->batch.offsets;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      double sum = 0;
      for (size_t t = offsets[s]; t < offsets[s + 1]; ++t) {
        baseline.token_id.push_back(static_cast<float>(stream.sample->batch.ids[t]));
        baseline.token_sequence.push_back(static_cast<float>(baseline.loss.size()));
        baseline.token_loss.push_back(stream.base[t]);
        sum += static_cast<double>(stream.base[t]);  // 0 for the last one
      }
      baseline.loss.push_back(sum);
      baseline.predictions.push_back(static_cast<double>(offsets[s + 1] - offsets[s] - 1));
      baseline.tokens.push_back(static_cast<double>(offsets[s + 1] - offsets[s]));
    }
  }
  baseline.draws = draw_windows(baseline.loss.size(), options.draws, options.seed);
  return baseline;
}

// Work in units of one token through one layer (layer_sweep.h).
double total_units(const Model& model, const Splits& splits, const SweepOptions& options,
                   const std::function<bool(size_t)>& finished) {
  const auto layers = static_cast<double>(model.config.layers);
  const auto fit = static_cast<double>(count_rows(splits.fit));
  const auto train = static_cast<double>(count_rows(splits.train));
  const auto calibration = static_cast<double>(count_rows(splits.calibration));
  const auto harm = static_cast<double>(count_rows(splits.harm));
  const auto test = static_cast<double>(count_rows(splits.test));
  const double head = head_units(model.config);
  const double rates = static_cast<double>(options.rates.size());
  const double variants = 1 + static_cast<double>(options.gates.size()) * (1 + rates) +
                          static_cast<double>(options.fold.size()) +
                          (options.controls ? 4 + (options.gates.empty() ? 0 : 2 * rates) : 0);
  const double based = test + calibration + (options.paper_gates() ? train : 0);
  const size_t last = options.layers.back();
  double units = based + (fit + train + calibration + harm + test) * static_cast<double>(last + 1);
  for (const size_t layer : options.layers) {
    if (finished(layer)) continue;
    const double suffix = layers - static_cast<double>(layer) - 1 + head;
    units += suffix * (test * variants + (options.paper_gates() ? train : 0) +
                       (options.harm_gate() ? calibration : 0));
  }
  return units;
}

}  // namespace

void sweep(ThreadPool& pool, const Model& model, const Splits& splits, const SweepOptions& options,
           const std::function<bool(size_t layer)>& finished,
           const std::function<void(const SweepBaseline&)>& baseline_ready,
           const std::function<void(const LayerResult&)>& layer_ready,
           const std::atomic<bool>& stop, bool quiet, const SampledGradients* gradients) {
  Progress progress("sweep", total_units(model, splits, options, finished), quiet);
  std::vector<Stream> fit = make_streams(model, splits.fit);
  std::vector<Stream> train = make_streams(model, splits.train);
  std::vector<Stream> calibration = make_streams(model, splits.calibration);
  std::vector<Stream> harm;
  if (gradients != nullptr) harm = make_streams(model, splits.harm);
  std::vector<Stream> test = make_streams(model, splits.test);

  set_base(pool, model, test, progress);
  set_base(pool, model, calibration, progress);
  if (options.paper_gates()) set_base(pool, model, train, progress);
  SweepBaseline baseline = make_baseline(test, options);
  size_t harm_sequences = 0;
  for (const Sample& sample : splits.harm) harm_sequences += sample.batch.sequences();
  if (harm_sequences != 0) {
    baseline.harm_draws = draw_windows(harm_sequences, options.draws, options.seed);
  }
  baseline_ready(baseline);

  size_t rows = 0;
  for (const auto* split :
       {&splits.fit, &splits.train, &splits.calibration, &splits.harm, &splits.test}) {
    rows = std::max(rows, most_rows(*split));
  }
  std::vector<WalkWorker> workers;
  workers.reserve(static_cast<size_t>(pool.size()));
  for (int w = 0; w < pool.size(); ++w) workers.emplace_back(model, rows);
  SweepContext context{{pool, model, workers, stop, progress}, options};

  for (size_t layer = 0; layer <= options.layers.back(); ++layer) {
    const bool wanted =
        std::find(options.layers.begin(), options.layers.end(), layer) != options.layers.end();
    if (!wanted || finished(layer)) {
      for (auto* streams : {&fit, &train, &calibration, &harm, &test}) {
        advance(context, *streams, layer);
      }
      continue;
    }
    progress.advance(0, fmt::format("layer {}", layer));
    LayerSweep measured(context, layer);
    measured.fit(fit);
    if (!train.empty()) measured.train(train);
    measured.calibrate(calibration);
    if (!harm.empty()) measured.harm(harm, *gradients);
    const LayerResult result = measured.test(test, baseline);
    progress.clear();
    layer_ready(result);
  }
}

}  // namespace halflin
