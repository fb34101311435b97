// What a routed model is compared with at equal FLOPs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "halflin/measure/joint_fit.h"
#include "halflin/measure/routing.h"

namespace halflin {

// Paths, and what is changed of the routes that their gates choose.
struct Control {
  std::string name;
  std::vector<MlpPath> paths;
  Router router;
};

// The same paths, each token's drawn at the shares [layers][options] at which the gates send
// tokens there. Sinks (of the samples to be routed, which must stay) keep the full path, here and
// in all other controls.
Control random_control(std::span<const MlpPath> paths,
                       const std::vector<std::vector<double>>& rates, const Sinks& sinks,
                       uint64_t seed);

// Whole layers linear, those first whose predicted harm is the lowest, until `flops_pct` of all
// FLOPs are saved; the last layer for a random share of its tokens.
Control whole_linear_control(const Model& model, const FittedLayers& layers, double flops_pct,
                             size_t window, const Sinks& sinks, uint64_t seed);

// Neurons pruned in all layers, those first whose variance x |output weights|^2 x nats a unit of
// energy is the lowest, until `flops_pct` are saved; at their mean, nothing folded or refitted.
Control pruned_control(const Model& model, const FittedLayers& layers, double flops_pct,
                       size_t window, const Sinks& sinks);

// The paper's `linear` gates, of all layers.
struct JointPaperGates {
  std::vector<Gate> gates;                 // [layers]; no weights where a layer has none
  std::vector<std::vector<float>> scores;  // [layers] of all calibration tokens, sinks left out
};
// Trained on the losses of the unchanged model with one layer's surrogate at every token of
// `train`, sinks spared, a layer at a time (PAPER.md, procedure 3).
JointPaperGates train_joint_paper_gates(ThreadPool& pool, const Model& model,
                                        const FittedLayers& layers, std::span<const Sample> train,
                                        std::span<const Sample> calibration,
                                        const Sinks& train_sinks, const Sinks& calibration_sinks,
                                        const std::atomic<bool>& stop, bool quiet);

// The surrogates behind these gates, all at the one probability that saves `flops_pct` on the
// calibration tokens.
Control paper_control(const Model& model, const FittedLayers& layers, const JointPaperGates& gates,
                      double flops_pct, size_t window, const Sinks& sinks);

}  // namespace halflin
