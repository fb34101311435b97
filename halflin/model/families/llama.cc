// Llama, SmolLM2 and Mistral: RMSNorm, rotary positions, grouped key-value heads, SwiGLU.
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/model/families/families.h"

namespace halflin {

namespace {

Config base_config(const std::string& family) {
  Config config;
  config.family = family;
  config.norm = NormKind::kRmsNorm;
  config.activation = Activation::kSilu;
  config.gated_mlp = true;
  return config;
}

void set_heads(const ConfigReader& reader, size_t heads, size_t kv_heads, size_t head_dim,
               Config& config) {
  if (head_dim == 0 && config.d_model % heads != 0) {
    fail("{}: a width of {} does not divide into {} heads", reader.file(), config.d_model, heads);
  }
  config.attention.heads = heads;
  config.attention.kv_heads = kv_heads;
  config.attention.head_dim = head_dim != 0 ? head_dim : config.d_model / heads;
  config.attention.scale = 1.f / std::sqrt(static_cast<float>(config.attention.head_dim));
}

}  // namespace

Architecture llama_from_hf(const ConfigReader& reader) {
  Architecture architecture;
  Config& config = architecture.config;
  config = base_config(reader.text("model_type"));
  config.layers = reader.count("num_hidden_layers");
  config.d_model = reader.count("hidden_size");
  config.d_mlp = reader.count("intermediate_size");
  config.vocab = reader.count("vocab_size");
  const bool mistral = config.family == "mistral";
  config.max_positions = reader.count_or("max_position_embeddings", mistral ? 4096 * 32 : 2048);
  config.norm_epsilon = reader.number_or("rms_norm_eps", 1e-6f);
  config.activation = parse_activation(reader, reader.text_or("hidden_act", "silu"));
  config.tied_head = reader.flag_or("tie_word_embeddings", false);
  const size_t heads = reader.count("num_attention_heads");
  set_heads(reader, heads, reader.count_or("num_key_value_heads", mistral ? 8 : heads),
            reader.count_or("head_dim", 0), config);
  if (mistral && !(reader.object().contains("sliding_window") && !reader.has("sliding_window"))) {
    config.attention.window = reader.count_or("sliding_window", 4096);  // null turns it off
  }
  if (reader.has("layer_types")) {
    fail("{}: \"layer_types\" (attention that differs by layer) is not supported", reader.file());
  }
  if (reader.has("partial_rotary_factor") && reader.number("partial_rotary_factor") != 1.f) {
    fail("{}: \"partial_rotary_factor\" is not supported for {}", reader.file(), config.family);
  }
  config.rope = make_rope(reader, config.attention.head_dim,
                          reader.number_or("rope_theta", 10000.f), config.max_positions);

  TensorLayout& layout = architecture.layout;
  layout.attention_bias = reader.flag_or("attention_bias", false);
  layout.mlp_bias = reader.flag_or("mlp_bias", false);
  layout.names.prefix = "model.";
  layout.names.embedding = "embed_tokens";
  layout.names.final_norm = "norm";
  layout.names.head = "lm_head";
  layout.names.attention_norm = "layers.{}.input_layernorm";
  layout.names.mlp_norm = "layers.{}.post_attention_layernorm";
  layout.names.q = "layers.{}.self_attn.q_proj";
  layout.names.k = "layers.{}.self_attn.k_proj";
  layout.names.v = "layers.{}.self_attn.v_proj";
  layout.names.attention_out = "layers.{}.self_attn.o_proj";
  layout.names.gate = "layers.{}.mlp.gate_proj";
  layout.names.up = "layers.{}.mlp.up_proj";
  layout.names.down = "layers.{}.mlp.down_proj";
  layout.names.ignored = {".rotary_emb.inv_freq"};
  return architecture;
}

Architecture llama_from_gguf(const ConfigReader& reader) {
  Architecture architecture;
  Config& config = architecture.config;
  config = base_config("llama");
  if (reader.has("llama.expert_count")) {
    fail("{}: \"llama.expert_count\": mixtures of experts are not supported", reader.file());
  }
  config.layers = reader.count("llama.block_count");
  config.d_model = reader.count("llama.embedding_length");
  config.d_mlp = reader.count("llama.feed_forward_length");
  config.max_positions = reader.count("llama.context_length");
  config.norm_epsilon = reader.number("llama.attention.layer_norm_rms_epsilon");
  const size_t heads = reader.count("llama.attention.head_count");
  set_heads(reader, heads, reader.count_or("llama.attention.head_count_kv", heads),
            reader.count_or("llama.attention.key_length", 0), config);
  config.attention.window = reader.count_or("llama.attention.sliding_window", 0);
  const size_t dims = reader.count_or("llama.rope.dimension_count", config.attention.head_dim);
  config.rope.dims = dims;
  config.rope.frequencies =
      rope_frequencies(dims, reader.number_or("llama.rope.freq_base", 10000.f));
  const std::string scaling = reader.text_or("llama.rope.scaling.type", "none");
  if (scaling == "linear") {
    const float factor = reader.number("llama.rope.scaling.factor");
    for (float& frequency : config.rope.frequencies) frequency /= factor;
  } else if (scaling != "none") {
    fail("{}: llama.rope.scaling.type \"{}\" is not supported in GGUF (none and linear are)",
         reader.file(), scaling);
  }
  TensorLayout& layout = architecture.layout;
  layout.interleaved_rope = true;
  layout.rope_factors = "rope_freqs.weight";
  layout.names = gguf_names();
  layout.names.q = "blk.{}.attn_q";
  layout.names.k = "blk.{}.attn_k";
  layout.names.v = "blk.{}.attn_v";
  layout.names.gate = "blk.{}.ffn_gate";
  return architecture;
}

}  // namespace halflin
