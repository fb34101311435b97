// The sections of one layer's analysis, as JSON. docs/analyses.md says what each key means.
#pragma once

#include <nlohmann/json.hpp>

#include "halflin/analyze/features.h"
#include "halflin/analyze/layer_analysis.h"

namespace halflin {

nlohmann::json distribution_json(const AnalysisContext& context, std::span<const float> delta,
                                 std::span<const uint32_t> window, const BootstrapDraws& draws);

// Held-out share of delta's variance: by token, by context, by both, by surface features. `context`
// [T, d] is the context part of x; window those of the test rows.
nlohmann::json explained_json(const AnalysisContext& context, const LayerRows& a,
                              MatView<const float> context_part, std::span<const uint32_t> window);

nlohmann::json no_fly_json(const AnalysisContext& context, const LayerRows& a, const LayerRows& b);

// Each surface feature's correlation with delta, over all rows of A.
nlohmann::json surface_json(const AnalysisContext& context, const LayerRows& a);

nlohmann::json clusters_json(const AnalysisContext& context, const LayerRows& a,
                             std::span<const int8_t> labels, std::span<const uint32_t> window);

// What the whole-input gate looks at: function words, and the extreme tokens in their sentences.
nlohmann::json direction_json(const AnalysisContext& context, std::span<const float> scores,
                              std::span<const uint32_t> window);

// The same gate trained on text B, on halves of A, on early and late positions.
nlohmann::json stability_json(const AnalysisContext& context, const LayerRows& a,
                              const LayerRows& b, const Gate& whole, const HeldOut& held_out);

}  // namespace halflin
