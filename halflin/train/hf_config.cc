#include "halflin/train/hf_config.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/model/families/families.h"

namespace halflin {

namespace {

using nlohmann::json;

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_new";
    case Activation::kSilu:
      return "silu";
    case Activation::kRelu:
      return "relu";
    case Activation::kNone:
      break;
  }
  fail("config.json has no name for this activation");
}

struct RopeBase {
  double theta = 10000;
  double factor = 1;  // all frequencies are divided by it
};

// The base behind the frequencies theta^(-2i / dims) / factor.
RopeBase rope_base(const Rope& rope) {
  RopeBase base;
  const size_t n = rope.frequencies.size();
  if (n == 0) return base;
  base.factor = 1.0 / static_cast<double>(rope.frequencies[0]);
  if (n > 1) {
    const double fall = static_cast<double>(rope.frequencies[n - 1]) * base.factor;
    base.theta = std::pow(fall, -static_cast<double>(rope.dims) / static_cast<double>(2 * (n - 1)));
  }
  for (double* value : {&base.theta, &base.factor}) {  // undo float32's rounding
    const double whole = std::round(*value);
    if (std::abs(*value - whole) < 1e-4 * whole) *value = whole;
  }
  const std::vector<float> plain = rope_frequencies(rope.dims, static_cast<float>(base.theta));
  for (size_t i = 0; i < n; ++i) {
    const double want = static_cast<double>(plain[i]) / base.factor;
    if (std::abs(static_cast<double>(rope.frequencies[i]) - want) > 1e-5 * want) {
      fail("rotary frequency {} is {}, not {}: config.json cannot describe this scaling", i,
           rope.frequencies[i], want);
    }
  }
  if (rope.scale != 1.f) fail("config.json cannot describe a rotary scale of {}", rope.scale);
  return base;
}

void put_rope(const Config& config, json& out) {
  const RopeBase base = rope_base(config.rope);
  if (base.factor != 1) out["rope_scaling"] = {{"type", "linear"}, {"factor", base.factor}};
  out[config.family == "gpt_neox" ? "rotary_emb_base" : "rope_theta"] = base.theta;
}

// Whether all layers have the biases, or none; those that have no such part do not count.
template <class There, class F>
bool uniform(const TrainModel& model, const char* what, const There& there, const F& has) {
  const auto all = std::count_if(model.layers.begin(), model.layers.end(), there);
  const auto count = std::count_if(model.layers.begin(), model.layers.end(),
                                   [&](const TrainLayer& l) { return there(l) && has(l); });
  if (count != 0 && count != all) {
    fail("{} of {} layers have {} biases: config.json asks for all or none", count, all, what);
  }
  return count != 0;
}

json gpt2(const Config& config) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"n_layer", config.layers},
          {"n_embd", config.d_model},
          {"n_head", config.attention.heads},
          {"n_inner", config.d_mlp},
          {"n_positions", config.max_positions},
          {"layer_norm_epsilon", config.norm_epsilon},
          {"activation_function", activation_name(config.activation)},
          {"scale_attn_weights", config.attention.scale != 1.f},
          {"scale_attn_by_inverse_layer_idx", config.scale_by_layer}};
}

json neox(const Config& config) {
  // Read back by rounding down: half a dimension to spare.
  const double fraction = (static_cast<double>(config.rope.dims) + 0.5) /
                          static_cast<double>(config.attention.head_dim);
  json out = {{"model_type", "gpt_neox"},
              {"architectures", {"GPTNeoXForCausalLM"}},
              {"hidden_size", config.d_model},
              {"num_hidden_layers", config.layers},
              {"num_attention_heads", config.attention.heads},
              {"intermediate_size", config.d_mlp},
              {"max_position_embeddings", config.max_positions},
              {"layer_norm_eps", config.norm_epsilon},
              {"hidden_act", activation_name(config.activation)},
              {"rotary_pct", std::min(fraction, 1.0)},
              {"use_parallel_residual", config.parallel_residual}};
  put_rope(config, out);
  return out;
}

json llama(const Config& config) {
  const bool mistral = config.family == "mistral" || config.attention.window != 0;
  json out = {{"model_type", mistral ? "mistral" : "llama"},
              {"architectures", {mistral ? "MistralForCausalLM" : "LlamaForCausalLM"}},
              {"hidden_size", config.d_model},
              {"num_hidden_layers", config.layers},
              {"num_attention_heads", config.attention.heads},
              {"num_key_value_heads", config.attention.kv_heads},
              {"head_dim", config.attention.head_dim},
              {"intermediate_size", config.d_mlp},
              {"max_position_embeddings", config.max_positions},
              {"rms_norm_eps", config.norm_epsilon},
              {"hidden_act", activation_name(config.activation)}};
  if (mistral) {
    out["sliding_window"] = config.attention.window == 0 ? json() : json(config.attention.window);
  }
  put_rope(config, out);
  return out;
}

}  // namespace

json hf_config(const TrainModel& model) {
  const Config& config = model.config;
  json out = config.family == "gpt2"       ? gpt2(config)
             : config.family == "gpt_neox" ? neox(config)
                                           : llama(config);
  out["vocab_size"] = config.vocab;
  out["tie_word_embeddings"] = config.tied_head;
  // Hugging Face's defaults are ids of other tokenizers; tokenizer_config.json names the tokens.
  out["bos_token_id"] = nullptr;
  out["eos_token_id"] = nullptr;
  const bool attention_bias = uniform(
      model, "attention", [](const TrainLayer&) { return true; },
      [](const TrainLayer& layer) {
        return layer.qkv.bias.exists() && layer.attention_out.bias.exists();
      });
  const bool mlp_bias = uniform(
      model, "MLP", [](const TrainLayer& layer) { return layer.mlp.full.has_value(); },
      [](const TrainLayer& layer) { return layer.mlp.full->up.bias.exists(); });
  if (config.family == "gpt_neox" || out["model_type"] == "llama") {
    out["attention_bias"] = attention_bias;
  }
  if (out["model_type"] == "llama") out["mlp_bias"] = mlp_bias;
  return out;
}

}  // namespace halflin
