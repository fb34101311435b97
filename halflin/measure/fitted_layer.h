// What an allocation chooses from at each layer, and what it chooses at a price.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halflin/measure/path_time.h"
#include "halflin/mlp/path.h"

namespace halflin {

struct FittedOption {
  std::shared_ptr<const PlainPath> path;
  std::string kind;  // the path's, with its neurons: for people
  size_t kept = 0;
  std::shared_ptr<const CheapPath> packed;
  Gate gate;              // score: minus the log of the predicted harm in nats
  float sink_score = 0;   // the highest score of a sink: no threshold may lie below it
  double saved = 0;       // share of all that a token costs that the path saves
  double gate_cost = 0;   // and that its gate costs
  double fixed_cost = 0;  // and that each token of the text costs if any takes the path
  PathTime time;          // by the clock, where that was measured
  double energy = 0;      // mean error energy on the train split, sinks left out
  double energy_all = 0;  // the same with the sinks
  double scale = 0;       // nats that a unit of its error energy costs
  double r2 = 0;          // of the predicted log error energy on the train split
  // Of the tokens of the train split that are no sinks: scores, and tokens from the highest on.
  std::vector<float> score;
  std::vector<uint32_t> order;
};

struct FittedLayer {
  std::vector<FittedOption> options;  // in order of rising cost
  double scale = 0;                   // nats that a unit of error energy costs

  // What controls are made of: the linear surrogate with its mean error energy on the train split,
  // and the neurons' means and share in the output's variance, on the fit split.
  std::shared_ptr<const CheapPath> linear;
  std::shared_ptr<const PlainPath> plain_linear;  // where it is none of the options
  double linear_energy = 0;
  std::vector<double> neuron_mean;    // [h]
  std::vector<double> neuron_energy;  // [h] variance x |output weights|^2
};
using FittedLayers = std::vector<FittedLayer>;

// Gates at one price, in nats for all that a token costs. Taking a path gains price x saved less
// the predicted harm. From the dearest path to the cheapest, each one's threshold is what gains
// most on the train split, given what its tokens would gain on the dearer paths. From what the
// layer gains in all goes price x what gates cost the tokens that they score (a token that passes
// one meets no further one), and price x the fixed costs. Options leave one by one, each time the
// one without which the layer gains most, while there are more than `most` or the gain does not
// fall.
inline constexpr size_t kAllPaths = 255;
MlpPath priced_path(std::span<const FittedOption> options, double price, size_t most = kAllPaths);
// One path for all tokens: the one that gains most, or none.
MlpPath whole_layer_path(std::span<const FittedOption> options, double price);

std::vector<MlpPath> priced_paths(const FittedLayers& layers, double price, bool whole_layers,
                                  size_t most = kAllPaths);

}  // namespace halflin
