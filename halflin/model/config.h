// model/: a checkpoint's shapes, weights and forward pass. Families differ in data, not in code.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halflin/io/tensor_file.h"
#include "halflin/ops/attention.h"
#include "halflin/ops/norm.h"
#include "halflin/ops/rope.h"

namespace halflin {

// Everything the forward pass needs to know. Sizes in elements.
struct Config {
  std::string family;  // "gpt2", "gpt_neox", "llama", "mistral"
  size_t layers = 0;
  size_t d_model = 0;  // width of the residual stream
  size_t d_mlp = 0;    // neurons of one MLP
  size_t vocab = 0;
  size_t max_positions = 0;  // longest sequence the model was made for
  NormKind norm = NormKind::kLayerNorm;
  float norm_epsilon = 1e-5f;
  Activation activation = Activation::kGeluErf;
  bool gated_mlp = false;          // activation(x gate) * (x up), SwiGLU and the like
  bool parallel_residual = false;  // MLP and attention both read the layer's input
  bool learned_positions = false;  // added to the embedding
  bool tied_head = false;          // the head is the embedding
  AttentionShape attention;
  bool scale_by_layer = false;  // attention also divided by layer + 1 (a GPT-2 variant)
  Rope rope;
};

// How a family's checkpoint stores its tensors. "{}" in a name stands for the layer. An empty name:
// the family has no such tensor.
struct TensorNames {
  std::string embedding, positions, final_norm, head;
  std::string attention_norm, mlp_norm;
  std::string qkv;  // fused q, k, v; or else three tensors:
  std::string q, k, v;
  std::string attention_out;
  std::string gate, up, down;
  std::string prefix;                // may precede every name but the head's ("transformer.")
  std::vector<std::string> ignored;  // buffers some checkpoints carry, substrings
};

enum class QkvOrder {
  kConcatenated,  // q of all heads | k of all heads | v of all heads
  kPerHead,       // head by head: q, k, v (GPT-NeoX)
};

struct TensorLayout {
  TensorNames names;
  bool in_by_out = false;  // linear weights stored [in, out] (GPT-2's Conv1D)
  QkvOrder qkv_order = QkvOrder::kConcatenated;
  // Whether the linear layers have biases; none: as the file has them.
  std::optional<bool> attention_bias;
  std::optional<bool> mlp_bias;
  bool interleaved_rope = false;  // q and k rows permuted for pairwise rotation (GGUF's llama)
  std::string rope_factors;       // optional tensor that divides the rotary frequencies (GGUF)
};

struct Architecture {
  Config config;
  TensorLayout layout;
};

// From config.json. Unsupported families, activations and features are an Error that names them.
Architecture parse_config(const nlohmann::json& config, const std::string& file);
// From GGUF metadata ("general.architecture", ...).
Architecture parse_gguf_config(const nlohmann::json& metadata, const std::string& file);

// The name of a layer's tensor: the pattern with its "{}" replaced.
std::string layer_name(const std::string& pattern, size_t layer);

// Puts names.prefix before every name but the head's.
void add_prefix(TensorNames& names);

// Multiply-adds are two FLOPs; attention at its average length in a window of `window` tokens.
struct FlopCount {
  double attention = 0;  // projections and scores
  double mlp = 0;
  double head = 0;
  double total() const { return attention + mlp + head; }
};
FlopCount flops_per_token(const Config& config, size_t window);

}  // namespace halflin
