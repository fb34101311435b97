#include "halflin/analyze/layer_analysis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/analyze/layer_sections.h"
#include "halflin/analyze/parts.h"
#include "halflin/analyze/resample.h"
#include "halflin/base/error.h"

namespace halflin {

using nlohmann::json;

namespace {

json probe_json(const Probe& probe, size_t train_tokens) {
  if (!probe.reason.empty()) return {{"too_few", train_tokens}, {"none", probe.reason}};
  json out = figure(probe.auc);
  out["params"] = probe.gate.params;
  return out;
}

json geometry_json(const PartGeometry& g) {
  return {{"token_norm", g.token_norm},
          {"context_norm", g.context_norm},
          {"x_norm", g.x_norm},
          {"context_fraction", g.context_fraction},
          {"context_fraction_sd", g.context_fraction_sd},
          {"cosine", g.cosine},
          {"cosine_sd", g.cosine_sd}};
}

json all_linear_json(const AnalysisContext& c, const AnalysisText& text, const LayerRows& rows,
                     const BootstrapDraws& draws) {
  std::vector<double> predictions;
  for (const Sample& sample : text.samples) {
    predictions.push_back(static_cast<double>(sample.batch.rows() - 1));
  }
  const Interval cost = delta_ppl(draws, rows.base, rows.linear, predictions, c.options.interval);
  json out = figure(cost);
  out["p"] = cost.p;
  return out;
}

const Probe* find(std::span<const Probe> probes, const char* name) {
  for (const Probe& probe : probes) {
    if (probe.name == name && probe.reason.empty()) return &probe;
  }
  return nullptr;
}

}  // namespace

AnalysisContext make_analysis_context(ThreadPool& pool, const Model& model,
                                      const Tokenizer& tokenizer, const AnalysisTexts& texts,
                                      const AnalysisOptions& options) {
  AnalysisContext c{pool, model, tokenizer, texts, options, {}, {}, {}, {}, {}, {}};
  const size_t d = model.config.d_model;
  c.embedding = Matrix<float>(texts.a.rows(), d);
  const std::vector<size_t> first = first_rows(texts.a);
  for (size_t w = 0; w < texts.a.windows(); ++w) {
    const Batch& batch = texts.a.samples[w].batch;
    Matrix<float> embedded(batch.rows(), d);
    embed(model, batch, embedded.view());
    std::copy_n(embedded.data(), (batch.rows() - 1) * d, c.embedding.row(first[w]));
  }
  c.surface = surface_features(tokenizer, texts.a, texts.frequency);
  c.draws_a = draw_windows(texts.a.windows(), options.draws, options.seed);
  c.draws_b = draw_windows(texts.b.windows(), options.draws, options.seed + 1);
  c.draws_a_test = draw_windows(texts.a.test_windows(), options.draws, options.seed + 2);
  c.draws_b_test = draw_windows(texts.b.test_windows(), options.draws, options.seed + 3);
  return c;
}

LayerAnalysis analyze_layer(const AnalysisContext& c, size_t layer, const LayerRows& a,
                            const LayerRows& b, const TypeMeans& type_means) {
  LayerAnalysis out;
  json& figures = out.figures;
  figures["layer"] = layer;
  const auto broken = [](const std::vector<float>& delta) {
    return std::count_if(delta.begin(), delta.end(), [](float v) { return !std::isfinite(v); });
  };
  if (const auto n = broken(a.delta) + broken(b.delta); n != 0) {
    figures["failed"] = fmt::format("{} loss differences are not finite", n);
    return out;
  }
  const AnalysisText& text = c.texts.a;
  figures["all_linear"] = {{"a", all_linear_json(c, text, a, c.draws_a)},
                           {"b", all_linear_json(c, c.texts.b, b, c.draws_b)}};
  figures["delta"] = {{"a", distribution_json(c, a.delta, text.window, c.draws_a)},
                      {"b", distribution_json(c, b.delta, c.texts.b.window, c.draws_b)}};

  // Labels and windows of the test rows.
  const size_t split = text.train_rows;
  const DeltaLabels labels = label_by_delta(std::span(a.delta).subspan(split));
  std::vector<uint32_t> window;
  for (size_t t = split; t < text.rows(); ++t) {
    window.push_back(text.window[t] - static_cast<uint32_t>(text.train_windows));
  }
  const HeldOut held_out{labels.label, window, c.draws_a_test, c.options.interval};
  std::vector<Probe> probes;
  const auto probe = [&](const char* name, MatView<const float> features) {
    probes.push_back(train_probe(c.pool, name, features, a.delta, split, held_out));
  };

  probe("whole", a.x.view());
  json decomposition;
  {
    const InputParts raw = raw_parts(c.embedding.view(), a.x.view());
    decomposition["raw"] = geometry_json(part_geometry(raw, a.x.view()));
    probe("raw_token", raw.token.view());
    probe("raw_context", raw.context.view());
  }
  {
    const InputParts frozen =
        frozen_parts(c.model.layers[layer].mlp_norm, c.embedding.view(), a.norm_input.view());
    decomposition["frozen"] = geometry_json(part_geometry(frozen, a.x.view()));
    probe("token", frozen.token.view());
    probe("context", frozen.context.view());
    figures["explained"] = explained_json(c, a, frozen.context.view(), window);
  }
  probe("token_type_means", type_means.rows(text.input).view());
  decomposition["token_type_coverage"] = type_means.coverage(text.input);
  probe("position", position_features(text).view());
  probe("noise", noise_features(text.rows(), a.x.cols(), c.options.seed, layer).view());
  figures["decomposition"] = decomposition;
  figures["gates"] = {{"train_tokens", split}, {"test_tokens", text.test_rows()}};
  for (const Probe& p : probes) figures["gates"]["auc"][p.name] = probe_json(p, split);

  const auto compare = [&](const char* name, const char* left, const char* right) {
    const Probe* l = find(probes, left);
    const Probe* r = find(probes, right);
    if (l == nullptr || r == nullptr) return;
    figures["gates"]["auc_differences"][name] =
        figure(auc_difference(c.pool, c.draws_a_test, l->test_scores, r->test_scores, labels.label,
                              window, c.options.interval.confidence));
  };
  compare("context_minus_token", "context", "token");
  compare("whole_minus_context", "whole", "context");
  compare("whole_minus_token", "whole", "token");
  compare("whole_minus_token_type_means", "whole", "token_type_means");
  compare("raw_context_minus_raw_token", "raw_context", "raw_token");

  figures["no_fly"] = no_fly_json(c, a, b);
  figures["surface"] = surface_json(c, a);
  figures["clusters"] = clusters_json(c, a, labels.label, window);
  if (const Probe* whole = find(probes, "whole")) {
    out.scores_a = gate_scores(c.pool, whole->gate, a.x.view());
    figures["gate_direction"] = direction_json(c, whole->test_scores, window);
    figures["stability"] = stability_json(c, a, b, whole->gate, held_out);
  }
  return out;
}

}  // namespace halflin
