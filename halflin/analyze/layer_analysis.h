// Everything an analysis says of one layer, from the rows that the walk measured there.
#pragma once

#include <nlohmann/json.hpp>

#include "halflin/analyze/no_fly.h"
#include "halflin/analyze/probes.h"
#include "halflin/analyze/texts.h"
#include "halflin/model/model.h"

namespace halflin {

struct AnalysisOptions {
  std::vector<size_t> layers;  // rising
  double ridge = 0.01;         // lambda of surrogates, on sums as they are
  uint64_t seed = 0;
  size_t draws = 10000;
  IntervalOptions interval;
  NoFlyRules no_fly;
};

// What all layers share.
struct AnalysisContext {
  ThreadPool& pool;
  const Model& model;
  const Tokenizer& tokenizer;
  const AnalysisTexts& texts;
  const AnalysisOptions& options;
  Matrix<float> embedding;  // [T of A, d] of each row's input token, with its learned position
  Matrix<float> surface;    // [T of A, 13]
  BootstrapDraws draws_a, draws_b;            // over all windows
  BootstrapDraws draws_a_test, draws_b_test;  // over test windows
};
AnalysisContext make_analysis_context(ThreadPool& pool, const Model& model,
                                      const Tokenizer& tokenizer, const AnalysisTexts& texts,
                                      const AnalysisOptions& options);

// One text's rows at one layer, in the order of AnalysisText.
struct LayerRows {
  Matrix<float> x;                   // [T, d] the MLP's input
  Matrix<float> norm_input;          // [T, d] what the norm before it read; text A only
  std::vector<float> delta;          // [T] nats
  std::vector<double> base, linear;  // [windows] sums of losses without and with the surrogate
};

struct LayerAnalysis {
  nlohmann::json figures;
  std::vector<float>
      scores_a;  // [T of A] of the gate on the whole input; empty where there is none
};
LayerAnalysis analyze_layer(const AnalysisContext& context, size_t layer, const LayerRows& a,
                            const LayerRows& b, const TypeMeans& type_means);

}  // namespace halflin
