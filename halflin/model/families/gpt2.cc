// GPT-2: LayerNorm, learned positions, fused q k v, tanh GELU, tied head.
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/model/families/families.h"

namespace halflin {

namespace {

void set_heads(const ConfigReader& reader, size_t heads, Config& config) {
  if (config.d_model % heads != 0) {
    fail("{}: a width of {} does not divide into {} heads", reader.file(), config.d_model, heads);
  }
  config.attention.heads = heads;
  config.attention.kv_heads = heads;
  config.attention.head_dim = config.d_model / heads;
  config.attention.scale = 1.f / std::sqrt(static_cast<float>(config.attention.head_dim));
}

Config base_config() {
  Config config;
  config.family = "gpt2";
  config.norm = NormKind::kLayerNorm;
  config.activation = Activation::kGeluTanh;
  config.learned_positions = true;
  config.tied_head = true;
  return config;
}

}  // namespace

Architecture gpt2_from_hf(const ConfigReader& reader) {
  Architecture architecture;
  Config& config = architecture.config;
  config = base_config();
  config.layers = reader.count("n_layer");
  config.d_model = reader.count("n_embd");
  config.d_mlp = reader.count_or("n_inner", 4 * config.d_model);
  config.vocab = reader.count("vocab_size");
  config.max_positions = reader.count_or("n_positions", reader.count_or("n_ctx", 1024));
  config.norm_epsilon = reader.number_or("layer_norm_epsilon", 1e-5f);
  config.activation = parse_activation(reader, reader.text_or("activation_function", "gelu_new"));
  config.tied_head = reader.flag_or("tie_word_embeddings", true);
  reader.require("add_cross_attention", false, "decoders alone are");
  set_heads(reader, reader.count("n_head"), config);
  if (!reader.flag_or("scale_attn_weights", true)) config.attention.scale = 1.f;
  config.scale_by_layer = reader.flag_or("scale_attn_by_inverse_layer_idx", false);

  TensorLayout& layout = architecture.layout;
  layout.in_by_out = true;
  layout.attention_bias = true;
  layout.mlp_bias = true;
  layout.names.prefix = "transformer.";
  layout.names.embedding = "wte";
  layout.names.positions = "wpe";
  layout.names.final_norm = "ln_f";
  layout.names.head = "lm_head";
  layout.names.attention_norm = "h.{}.ln_1";
  layout.names.mlp_norm = "h.{}.ln_2";
  layout.names.qkv = "h.{}.attn.c_attn";
  layout.names.attention_out = "h.{}.attn.c_proj";
  layout.names.up = "h.{}.mlp.c_fc";
  layout.names.down = "h.{}.mlp.c_proj";
  layout.names.ignored = {".attn.bias", ".attn.masked_bias"};  // the causal mask, in old files
  return architecture;
}

Architecture gpt2_from_gguf(const ConfigReader& reader) {
  Architecture architecture;
  Config& config = architecture.config;
  config = base_config();
  config.layers = reader.count("gpt2.block_count");
  config.d_model = reader.count("gpt2.embedding_length");
  config.d_mlp = reader.count("gpt2.feed_forward_length");
  config.max_positions = reader.count("gpt2.context_length");
  config.norm_epsilon = reader.number("gpt2.attention.layer_norm_epsilon");
  set_heads(reader, reader.count("gpt2.attention.head_count"), config);
  architecture.layout.names = gguf_names();
  architecture.layout.names.qkv = "blk.{}.attn_qkv";
  architecture.layout.attention_bias = true;
  architecture.layout.mlp_bias = true;
  return architecture;
}

}  // namespace halflin
