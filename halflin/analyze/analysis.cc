#include "halflin/analyze/analysis.h"

#include <algorithm>

#include "halflin/analyze/statements.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/walk.h"

namespace halflin {

namespace {

// Statistics of one layer, in units of one token through one layer: only for the bar.
constexpr double kStatisticsUnits = 2e5;

double total_units(const Model& model, const AnalysisTexts& texts, const AnalysisOptions& options,
                   const std::function<bool(size_t)>& finished) {
  const auto layers = static_cast<double>(model.config.layers);
  const auto fit = static_cast<double>(count_rows(texts.fit));
  const auto analysed =
      static_cast<double>(count_rows(texts.a.samples) + count_rows(texts.b.samples));
  double units = analysed + (fit + analysed) * static_cast<double>(options.layers.back() + 1);
  for (const size_t layer : options.layers) {
    if (finished(layer)) continue;
    units += analysed * (layers - static_cast<double>(layer) - 1 + head_units(model.config));
    units += kStatisticsUnits;
  }
  return units;
}

// x, delta, losses of a text's streams at a layer; the streams leave it.
LayerRows measure(WalkContext& c, std::span<Stream> streams, size_t layer, const AnalysisText& text,
                  const CheapPath& surrogate, bool keep_norm_input) {
  const size_t d = c.model.config.d_model;
  const std::vector<size_t> first = first_rows(text);
  LayerRows rows;
  rows.x = Matrix<float>(text.rows(), d);
  if (keep_norm_input) rows.norm_input = Matrix<float>(text.rows(), d);
  rows.delta.resize(text.rows());
  rows.base.assign(text.windows(), 0.0);
  rows.linear.assign(text.windows(), 0.0);
  each_batch(c, streams, layer,
             [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
               const size_t used = first[b + 1] - first[b];  // all but the last
               std::copy_n(view.x32.data, used * d, rows.x.row(first[b]));
               if (keep_norm_input) {
                 std::copy_n(view.norm_input.data, used * d, rows.norm_input.row(first[b]));
               }
               apply_cheap(c.pool, surrogate, view.x, false, view.cheap, worker.workspace.mlp);
               set_residual(stream, view.cheap, worker);
               const std::span<const float> losses = suffix_losses(c, stream, worker, layer);
               for (size_t t = 0; t < used; ++t) {
                 rows.delta[first[b] + t] = losses[t] - stream.base[t];
                 rows.base[b] += static_cast<double>(stream.base[t]);
                 rows.linear[b] += static_cast<double>(losses[t]);
               }
             });
  return rows;
}

}  // namespace

void analyze(ThreadPool& pool, const Model& model, const Tokenizer& tokenizer,
             const AnalysisTexts& texts, const AnalysisOptions& options,
             const std::function<bool(size_t layer)>& finished,
             const std::function<void(const AnalyzedLayer&)>& layer_ready,
             const std::atomic<bool>& stop, bool quiet) {
  Progress progress("analyze", total_units(model, texts, options, finished), quiet);
  std::vector<Stream> fit = make_streams(model, texts.fit);
  std::vector<Stream> a = make_streams(model, texts.a.samples);
  std::vector<Stream> b = make_streams(model, texts.b.samples);
  set_base(pool, model, a, progress);
  set_base(pool, model, b, progress);
  const AnalysisContext context = make_analysis_context(pool, model, tokenizer, texts, options);

  size_t rows = 0;
  for (const auto* samples : {&texts.fit, &texts.a.samples, &texts.b.samples}) {
    rows = std::max(rows, most_rows(*samples));
  }
  std::vector<WalkWorker> workers;
  workers.reserve(static_cast<size_t>(pool.size()));
  for (int w = 0; w < pool.size(); ++w) workers.emplace_back(model, rows);
  WalkContext walk{pool, model, workers, stop, progress};

  for (size_t layer = 0; layer <= options.layers.back(); ++layer) {
    const bool wanted =
        std::find(options.layers.begin(), options.layers.end(), layer) != options.layers.end();
    if (!wanted || finished(layer)) {
      for (auto* streams : {&fit, &a, &b}) advance(walk, *streams, layer);
      continue;
    }
    progress.advance(0, fmt::format("layer {}", layer));
    TypeMeans type_means(model.config.d_model);
    const LayerMoments moments = layer_moments(
        walk, fit, layer, /*neurons=*/false,
        [&](const Sample& sample, MatView<const float> x) { type_means.add(sample.batch.ids, x); });
    const CheapPath surrogate =
        affine_path(ridge(pool, moments.moments, options.ridge), model.precision);
    const LayerRows rows_a = measure(walk, a, layer, texts.a, surrogate, true);
    const LayerRows rows_b = measure(walk, b, layer, texts.b, surrogate, false);
    AnalyzedLayer ready;
    ready.analysis = analyze_layer(context, layer, rows_a, rows_b, type_means);
    ready.delta_a = rows_a.delta;
    ready.delta_b = rows_b.delta;
    progress.advance(kStatisticsUnits);
    progress.clear();
    layer_ready(ready);
  }
}

nlohmann::json assemble_analysis(const nlohmann::json& header,
                                 const std::vector<nlohmann::json>& layers, size_t layers_asked) {
  nlohmann::json result = header;
  result["complete"] = layers.size() == layers_asked;
  result["statements"] = judge_statements(layers);
  result["layers"] = layers;
  return result;
}

}  // namespace halflin
