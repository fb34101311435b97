// A loaded checkpoint: configuration, packed weights, and where they came from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "halflin/io/hub.h"
#include "halflin/io/tensor_file.h"
#include "halflin/mlp/path.h"
#include "halflin/model/config.h"
#include "halflin/ops/cross_entropy.h"

namespace halflin {

struct Layer {
  Norm attention_norm;   // [d]
  Norm mlp_norm;         // [d]
  Linear qkv;            // [d, (heads + 2 kv_heads) head_dim]: q | k | v
  Linear attention_out;  // [heads * head_dim, d]
  Mlp mlp;
};

struct Model {
  Config config;
  Precision precision = Precision::kF32;
  std::vector<Layer> layers;
  Norm final_norm;
  Head head;
  Matrix<float> positions;  // [max_positions, d] where learned
  RopeTable rope;           // of max_window positions
  size_t max_window = 0;    // longest sequence that may be passed

  TensorFile file;  // embedding rows and raw MLP weights are read from here when needed
  TensorLayout layout;
  std::string path;  // as the user named it
  size_t parameters = 0;
};

// An opened checkpoint whose tensors were checked against its configuration: every tensor there, in
// the right shape, none too many. No weight has been read.
struct Checkpoint {
  Architecture architecture;
  TensorFile file;
  std::string path;  // as the user named it
  size_t parameters = 0;
  // places.safetensors beside the weights, or empty; the layers whose MLP it replaces altogether.
  std::filesystem::path places;
  std::vector<size_t> without_mlp;
};
// `model` as find_model takes it. Errors name the file and the tensor. A directory with a
// places.safetensors (see train/places.h) is refused unless `with_places`: its weights alone are
// another model.
Checkpoint read_checkpoint(const std::string& model, bool with_places = false);

// Throws Error where a sequence of max_window tokens exceeds the model's positions.
void check_window(const Checkpoint& checkpoint, size_t max_window);

// Reads and packs the weights; `max_window` is the longest sequence that will be passed. Throws
// Error naming file and tensor on NaN or Inf, and where max_window exceeds the model's positions.
Model load_model(ThreadPool& pool, Checkpoint checkpoint, Precision precision, size_t max_window);

// One layer's MLP as stored, float32: for folding. Biases are empty where the MLP has none.
struct MlpWeights {
  Matrix<float> gate;  // [h, d], empty when not gated
  Matrix<float> up;    // [h, d]
  Matrix<float> down;  // [d, h]
  std::vector<float> gate_bias, up_bias, down_bias;
};
MlpWeights read_mlp_weights(const Model& model, size_t layer);

// The MLP of the given neurons alone, in the model's precision; `with_bias` keeps the output bias.
Mlp select_neurons(const Model& model, const MlpWeights& weights, std::span<const int32_t> neurons,
                   bool with_bias);

}  // namespace halflin
