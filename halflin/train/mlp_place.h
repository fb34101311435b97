// What an MLP's place holds while it is trained: the full MLP, something cheaper, or a gate that
// mixes or picks. The training counterpart of mlp/path.h.
#pragma once

#include <optional>
#include <vector>

#include "halflin/train/affine.h"

namespace halflin {

// down(activation(gate(x)) * up(x)) where there is a gate, else down(activation(up(x))).
struct TrainMlp {
  Activation activation = Activation::kGeluErf;
  TrainAffine gate;  // [h, d] or empty
  TrainAffine up;    // [h, d]
  TrainAffine down;  // [d, h]
};

// The sum of those parts that exist, as in CheapPath: a linear or low-rank surrogate, a folded or
// narrow MLP, a constant; nothing at all is a skip.
struct TrainCheap {
  TrainAffine affine;        // [d, d]
  TrainAffine low_rank_in;   // [r, d]
  TrainAffine low_rank_out;  // [d, r]
  std::optional<TrainMlp> narrow;
  Parameter constant;  // [1, d] or empty
};

// How much of a token goes through the full MLP: p = logistic(score), the score an affine function
// of x, or a small network out(activation(hidden(x))). (mlp/gate.h scores the other way round: an
// affine gate is exported with its sign turned.)
struct TrainGate {
  TrainAffine hidden;  // [n, d]; empty for an affine gate
  Activation activation = Activation::kGeluErf;
  TrainAffine out;  // [1, n], or [1, d] for an affine gate, with bias
  bool exists() const { return out.exists(); }
};

enum class Route {
  kFull,   // the full MLP
  kCheap,  // the cheap path for every token
  kSoft,   // p * full + (1 - p) * cheap
  kHard,   // full where p > 1/2, else cheap; gradients of p as if soft (straight-through)
};

struct MlpPlace {
  Route route = Route::kFull;
  std::optional<TrainMlp> full;  // may stay beside a cheap route, for gates to come or to be saved
  TrainCheap cheap;
  TrainGate gate;
};

// Adds to the loss, for each gated layer, with m the mean of p over the batch's tokens:
// mean_weight * m (the L1 penalty of arXiv 2603.03459) + target_weight * (m - target)^2.
struct GatePenalty {
  float mean_weight = 0;
  float target = 0;
  float target_weight = 0;
};

struct GateUse {
  double mean = 0;  // of p
  double full = 0;  // share of tokens with p > 1/2
  double penalty = 0;
};

// What the backward pass needs of the forward pass.
struct MlpActivations {
  FloatBuffer gate, up;  // [T, h] before activation
  OperandGrowth hidden;  // [T, h] input of `down`
};
struct PlaceActivations {
  MlpActivations full, narrow;
  OperandGrowth low_rank;           // [T, r]
  FloatBuffer full_out, cheap_out;  // [T, d] of a gated place
  FloatBuffer gate_hidden;          // [T, n] before activation
  OperandGrowth gate_neurons;       // [T, n]
  FloatBuffer probability;          // [T, 1]
};
struct PlaceScratch {
  FloatBuffer dhidden, dgate;         // [T, h]
  FloatBuffer dfull, dcheap, dscore;  // [T, d], [T, d], [T, 1]
  FloatBuffer dlow_rank;
};

// Everything that is there, in a fixed order.
std::vector<Parameter*> parameters(MlpPlace& place);

// y += place(x), and remembers in `kept` what the backward pass needs. Without y (no data), only
// the remembering: for a pass done again. Throws Error where the route needs what is not there.
void place_forward(TrainPass& pass, const MlpPlace& place, Operand x, PlaceActivations& kept,
                   MatView<float> y);

// From dy [T, d]: parameter gradients, and dx overwritten unless it is empty (no data). Returns the
// gate's use with its penalty (zeros where there is no gate).
GateUse place_backward(TrainPass& pass, MlpPlace& place, Operand x, PlaceActivations& kept,
                       MatView<const float> dy, const GatePenalty& penalty, PlaceScratch& scratch,
                       MatView<float> dx);

// Of the last forward pass.
GateUse gate_use(const MlpPlace& place, PlaceActivations& kept, size_t rows,
                 const GatePenalty& penalty);

}  // namespace halflin
