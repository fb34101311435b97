// GPT-NeoX and Pythia: LayerNorm, partial rotary positions, parallel residual, exact GELU.
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/model/families/families.h"

namespace halflin {

namespace {

Config base_config(const ConfigReader& reader, size_t d_model, size_t heads) {
  if (d_model % heads != 0) {
    fail("{}: a width of {} does not divide into {} heads", reader.file(), d_model, heads);
  }
  Config config;
  config.family = "gpt_neox";
  config.d_model = d_model;
  config.norm = NormKind::kLayerNorm;
  config.activation = Activation::kGeluErf;
  config.attention.heads = heads;
  config.attention.kv_heads = heads;
  config.attention.head_dim = d_model / heads;
  config.attention.scale = 1.f / std::sqrt(static_cast<float>(config.attention.head_dim));
  return config;
}

}  // namespace

Architecture neox_from_hf(const ConfigReader& reader) {
  Architecture architecture;
  Config& config = architecture.config;
  config = base_config(reader, reader.count("hidden_size"), reader.count("num_attention_heads"));
  config.layers = reader.count("num_hidden_layers");
  config.d_mlp = reader.count("intermediate_size");
  config.vocab = reader.count("vocab_size");
  config.max_positions = reader.count_or("max_position_embeddings", 2048);
  config.norm_epsilon = reader.number_or("layer_norm_eps", 1e-5f);
  config.activation = parse_activation(reader, reader.text_or("hidden_act", "gelu"));
  config.parallel_residual = reader.flag_or("use_parallel_residual", true);
  config.tied_head = reader.flag_or("tie_word_embeddings", false);
  float fraction = reader.number_or("rotary_pct", 0.25f);
  if (reader.has("rope_parameters")) {
    const ConfigReader rope(reader.object().at("rope_parameters"), reader.file());
    fraction = rope.number_or("partial_rotary_factor", fraction);
  }
  if (!(fraction > 0.f && fraction <= 1.f)) {
    fail("{}: rotary fraction {} should be in (0, 1]", reader.file(), fraction);
  }
  const auto dims = static_cast<size_t>(static_cast<float>(config.attention.head_dim) * fraction);
  config.rope =
      make_rope(reader, dims, reader.number_or("rotary_emb_base", 10000.f), config.max_positions);

  TensorLayout& layout = architecture.layout;
  layout.qkv_order = QkvOrder::kPerHead;
  layout.attention_bias = reader.flag_or("attention_bias", true);
  layout.mlp_bias = true;
  layout.names.prefix = "gpt_neox.";
  layout.names.embedding = "embed_in";
  layout.names.final_norm = "final_layer_norm";
  layout.names.head = "embed_out";
  layout.names.attention_norm = "layers.{}.input_layernorm";
  layout.names.mlp_norm = "layers.{}.post_attention_layernorm";
  layout.names.qkv = "layers.{}.attention.query_key_value";
  layout.names.attention_out = "layers.{}.attention.dense";
  layout.names.up = "layers.{}.mlp.dense_h_to_4h";
  layout.names.down = "layers.{}.mlp.dense_4h_to_h";
  // Buffers that older files carry.
  layout.names.ignored = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"};
  return architecture;
}

Architecture neox_from_gguf(const ConfigReader& reader) {
  Architecture architecture;
  Config& config = architecture.config;
  config = base_config(reader, reader.count("gptneox.embedding_length"),
                       reader.count("gptneox.attention.head_count"));
  config.layers = reader.count("gptneox.block_count");
  config.d_mlp = reader.count("gptneox.feed_forward_length");
  config.max_positions = reader.count("gptneox.context_length");
  config.norm_epsilon = reader.number("gptneox.attention.layer_norm_epsilon");
  config.parallel_residual = reader.flag_or("gptneox.use_parallel_residual", true);
  const size_t dims = reader.count("gptneox.rope.dimension_count");
  config.rope.dims = dims;
  config.rope.frequencies =
      rope_frequencies(dims, reader.number_or("gptneox.rope.freq_base", 10000.f));
  architecture.layout.names = gguf_names();
  architecture.layout.names.qkv = "blk.{}.attn_qkv";
  architecture.layout.mlp_bias = true;
  return architecture;
}

}  // namespace halflin
