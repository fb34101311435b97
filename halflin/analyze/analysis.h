// The walk of an analysis through the layers, and its result.
#pragma once

#include <atomic>
#include <functional>

#include "halflin/analyze/layer_analysis.h"

namespace halflin {

// Raised whenever a key changes its meaning.
inline constexpr int kAnalysisSchema = 1;

// One measured layer: its figures, and what is kept token by token.
struct AnalyzedLayer {
  LayerAnalysis analysis;
  std::vector<float> delta_a, delta_b;  // [T] of each text, nats
};

// Called with each measured layer, in order. `finished` says which layers an earlier run has.
// `stop`, when it turns true, ends the walk with Interrupted at the next batch. For each layer the
// surrogate is fitted on the fit windows, and one suffix pass of each text gives its deltas.
void analyze(ThreadPool& pool, const Model& model, const Tokenizer& tokenizer,
             const AnalysisTexts& texts, const AnalysisOptions& options,
             const std::function<bool(size_t layer)>& finished,
             const std::function<void(const AnalyzedLayer&)>& layer_ready,
             const std::atomic<bool>& stop, bool quiet);

// The result file: `header`, statements (statements.h), and the layers in order.
nlohmann::json assemble_analysis(const nlohmann::json& header,
                                 const std::vector<nlohmann::json>& layers, size_t layers_asked);

}  // namespace halflin
