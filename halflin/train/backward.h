// One forward and backward pass of the whole model through the MLP seam: losses, and gradients of
// every trainable parameter. Optimisers and loops stand on this.
//
// Results do not depend on the number of threads: every sum has an order of its own.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "halflin/model/forward.h"
#include "halflin/ops/head_loss.h"
#include "halflin/train/parameters.h"

namespace halflin {

struct LayerActivations {
  OperandGrowth attention_in;  // [T, d] norm before attention
  FloatBuffer qkv;             // [T, (heads + 2 kv_heads) head_dim], positions applied
  OperandGrowth mixed;         // [T, heads * head_dim]
  FloatBuffer middle;          // [T, d] residual stream before the MLP; sequential residual only
  OperandGrowth mlp_in;        // [T, d] norm before the MLP
  PlaceActivations mlp;
};

// Buffers and options of training passes. Grows with the largest batch seen; keep one.
struct TrainWorkspace {
  // Operands of matrix products; sums, weights, gradients and all else are float32. Without
  // bfloat16 instructions kBF16 computes in float32.
  Precision precision = Precision::kF32;
  // Keep each layer's input alone and compute the rest again in the backward pass: a third more
  // arithmetic in the layers, activations of one layer instead of all.
  bool recompute = false;

  std::vector<FloatBuffer> residuals;         // [T, d]: layers + 1, or two that take turns
  std::vector<LayerActivations> activations;  // one a layer, or one
  OperandGrowth weight, gradient, final_hidden;
  FloatBuffer dresidual, dnormed, dmixed, dqkv, dhidden;
  AttentionScratch attention;
  AttentionGradientScratch attention_gradient;
  PlaceScratch place;
  HeadLossScratch head;
  std::vector<size_t> positions;
};

// The frozen model that distillation follows: any model with the same vocabulary. Its own paths, if
// given, say what stands in its MLPs' places.
struct Teacher {
  const Model* model = nullptr;
  std::span<const MlpPath> paths;
  float temperature = 1.f;
  Workspace* workspace = nullptr;  // of at least the batch's rows
};

struct Objective {
  enum class Kind {
    kNextToken,  // cross-entropy of the next token
    kDistill,    // KL divergence from the teacher's predictions, at every position
    kSampled,    // cross-entropy of tokens drawn from the model's own predictions
  };
  Kind kind = Kind::kNextToken;
  // Gradients are those of scale * (sum of the tokens' losses); 0 stands for 1 / tokens, the mean.
  // With several batches a step, give 1 / (tokens of the step).
  float scale = 0.f;
  Teacher teacher;    // of kDistill
  uint64_t seed = 0;  // of kSampled
  // Gates' penalties, averaged over the gated layers; a batch's part of a step at penalty_scale.
  GatePenalty penalty;
  std::vector<GatePenalty> layer_penalties;  // one a layer, in place of that; or none
  float penalty_scale = 1.f;
};

struct PassResult {
  double loss_sum = 0;  // over the tokens that have a loss, in nats
  size_t tokens = 0;
  double penalty = 0;          // as added to the objective, penalty_scale apart
  std::vector<float> losses;   // [rows]; 0 where there is none
  std::vector<int32_t> drawn;  // [rows] kSampled: the labels
  std::vector<GateUse> gates;  // one a layer
  double mean_loss() const { return tokens == 0 ? 0.0 : loss_sum / static_cast<double>(tokens); }
};

// Called for each layer from the top, with the layer's MLP input x [T, d] and dL/df [T, d], the
// gradient of scale * (sum of losses) with respect to what its MLP adds to the residual stream.
using MlpOutputHook =
    std::function<void(size_t layer, Operand mlp_in, MatView<const float> gradient)>;

// Adds gradients to those that the model's trainable parameters hold. Layers below the lowest
// trainable parameter are not differentiated (with a hook: all are, down to layer 0). Throws Error
// on ids outside the vocabulary, sequences longer than max_window and places that lack what their
// route needs.
PassResult backward(ThreadPool& pool, TrainModel& model, const Batch& batch,
                    const Objective& objective, TrainWorkspace& workspace,
                    const MlpOutputHook& hook = {});

// The same losses without gradients.
PassResult evaluate(ThreadPool& pool, TrainModel& model, const Batch& batch,
                    const Objective& objective, TrainWorkspace& workspace);

}  // namespace halflin
