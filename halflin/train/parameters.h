// train/: gradients of the whole model through the MLP seam, and what changes weights with them.
//
// A model's weights as training needs them: plain row-major float32, each with room for its
// gradient unless it is frozen. (Inference packs weights for oneDNN instead: model/model.h.)
#pragma once

#include <string>
#include <vector>

#include "halflin/model/config.h"
#include "halflin/train/mlp_place.h"
#include "halflin/train/parameter.h"

namespace halflin {

struct TrainNorm {
  Parameter weight;  // [1, d]
  Parameter bias;    // [1, d], empty for RMSNorm
};

struct TrainLayer {
  TrainNorm attention_norm, mlp_norm;
  TrainAffine qkv;            // [(heads + 2 kv_heads) head_dim, d]: q | k | v, rotate-half order
  TrainAffine attention_out;  // [d, heads * head_dim]
  MlpPlace mlp;
};

struct TrainModel {
  Config config;
  size_t max_window = 0;  // longest sequence that may be passed
  Parameter embedding;    // [vocab, d]
  Parameter positions;    // [max_positions, d] where learned, else empty
  std::vector<TrainLayer> layers;
  TrainNorm final_norm;
  TrainAffine head;  // [vocab, d]; weight empty when the head is the embedding
  RopeTable rope;    // of max_window positions
};

// All weights zero and frozen, shapes as the configuration says; `biases` of attention and MLP.
// Every layer's place is its full MLP. Throws Error where max_window exceeds the positions.
TrainModel make_train_model(const Config& config, size_t max_window, bool attention_bias,
                            bool mlp_bias);

// Names every parameter by its place ("layers.3.mlp.full.up.weight"), in the order of `parameters`.
// Call after changing what an MLP's place holds.
void name_parameters(TrainModel& model);

// Every parameter that is there, trainable or frozen, in a fixed order: embedding, positions,
// layers from the bottom, final norm, head. Pointers last until the model changes.
std::vector<Parameter*> parameters(TrainModel& model);
// Those of one layer.
std::vector<Parameter*> parameters(TrainLayer& layer);

// Gives parameters a (zero) gradient, or takes it away.
void set_trainable(std::span<Parameter* const> parameters, bool trainable);
void zero_gradients(ThreadPool& pool, TrainModel& model);

}  // namespace halflin
