#include "halflin/model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "halflin/base/error.h"
#include "halflin/model/families/families.h"

namespace halflin {

using nlohmann::json;

namespace {

constexpr const char* kSupported = "gpt2, gpt_neox, llama and mistral are supported";

}  // namespace

bool ConfigReader::has(const std::string& key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

size_t ConfigReader::count(const std::string& key) const {
  if (!has(key)) fail("{}: \"{}\" is missing", file_, key);
  const json& value = object_.at(key);
  // A limit far above any model, far below what could overflow a product of three.
  constexpr uint64_t kLimit = 1u << 24;
  if (!value.is_number_integer() || value.get<int64_t>() <= 0 ||
      static_cast<uint64_t>(value.get<int64_t>()) > kLimit) {
    fail("{}: \"{}\" should be an integer from 1 to {}, found {}", file_, key, kLimit,
         value.dump());
  }
  return value.get<size_t>();
}

size_t ConfigReader::count_or(const std::string& key, size_t otherwise) const {
  return has(key) ? count(key) : otherwise;
}

float ConfigReader::number(const std::string& key) const {
  if (!has(key)) fail("{}: \"{}\" is missing", file_, key);
  const json& value = object_.at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    fail("{}: \"{}\" should be a number, found {}", file_, key, value.dump());
  }
  return value.get<float>();
}

float ConfigReader::number_or(const std::string& key, float otherwise) const {
  return has(key) ? number(key) : otherwise;
}

bool ConfigReader::flag_or(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const json& value = object_.at(key);
  if (!value.is_boolean()) {
    fail("{}: \"{}\" should be true or false, found {}", file_, key, value.dump());
  }
  return value.get<bool>();
}

std::string ConfigReader::text(const std::string& key) const {
  if (!has(key)) fail("{}: \"{}\" is missing", file_, key);
  const json& value = object_.at(key);
  if (!value.is_string()) {
    fail("{}: \"{}\" should be a string, found {}", file_, key, value.dump());
  }
  return value.get<std::string>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

void ConfigReader::require(const std::string& key, bool value, const char* why) const {
  if (flag_or(key, value) != value) {
    fail("{}: \"{}\": {} is not supported: {}", file_, key, !value, why);
  }
}

Activation parse_activation(const ConfigReader& reader, const std::string& name) {
  if (name == "gelu") return Activation::kGeluErf;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    return Activation::kGeluTanh;
  }
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  fail("{}: activation \"{}\" is not supported (gelu, gelu_new, silu and relu are)", reader.file(),
       name);
}

std::vector<float> rope_frequencies(size_t dims, float theta) {
  std::vector<float> frequencies(dims / 2);
  for (size_t i = 0; i < dims / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    frequencies[i] = 1.f / std::pow(theta, exponent);
  }
  return frequencies;
}

namespace {

// Llama 3: long wavelengths are stretched by `factor`, short ones kept, those between blended.
void scale_llama3(const ConfigReader& scaling, std::vector<float>& frequencies) {
  const float factor = scaling.number("factor");
  const float low = scaling.number("low_freq_factor");
  const float high = scaling.number("high_freq_factor");
  const float original = static_cast<float>(scaling.count("original_max_position_embeddings"));
  for (float& frequency : frequencies) {
    const float wavelength = 2.f * std::numbers::pi_v<float> / frequency;
    if (wavelength > original / low) {
      frequency /= factor;
    } else if (wavelength >= original / high) {
      const float smooth = (original / wavelength - low) / (high - low);
      frequency = (1.f - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// YaRN (Peng et al. 2023): per-dimension blend of stretched and plain frequencies, and a factor on
// cos and sin.
void scale_yarn(const ConfigReader& scaling, float theta, size_t max_positions, Rope& rope) {
  const double factor = scaling.number("factor");
  const double original =
      static_cast<double>(scaling.count_or("original_max_position_embeddings", max_positions));
  const auto mscale = [&](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  if (scaling.has("attention_factor")) {
    rope.scale = scaling.number("attention_factor");
  } else if (scaling.has("mscale") && scaling.has("mscale_all_dim")) {
    rope.scale = static_cast<float>(mscale(scaling.number("mscale")) /
                                    mscale(scaling.number("mscale_all_dim")));
  } else {
    rope.scale = static_cast<float>(mscale(1.0));
  }
  const double dims = static_cast<double>(rope.dims);
  // The dimension whose frequency makes `turns` turns over the original context.
  const auto dimension_of = [&](double turns) {
    return dims * std::log(original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(static_cast<double>(theta)));
  };
  double low = dimension_of(scaling.number_or("beta_fast", 32.f));
  double high = dimension_of(scaling.number_or("beta_slow", 1.f));
  if (scaling.flag_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double plain = rope.frequencies[i];
    rope.frequencies[i] = static_cast<float>(plain / factor * ramp + plain * (1 - ramp));
  }
}

}  // namespace

Rope make_rope(const ConfigReader& reader, size_t dims, float default_theta, size_t max_positions) {
  // Newer configs: "rope_parameters"; older ones: "rope_theta" beside "rope_scaling".
  const json none = json::object();
  const char* key = reader.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json& object = reader.has(key) ? reader.object().at(key) : none;
  if (!object.is_object()) fail("{}: \"{}\" should be an object", reader.file(), key);
  const std::string place = reader.file() + ": \"" + key + "\"";
  const ConfigReader scaling(object, place);
  const float theta = scaling.number_or("rope_theta", default_theta);
  if (!(theta > 1.f)) fail("{}: rope theta {} should be above 1", reader.file(), theta);

  Rope rope;
  rope.dims = dims;
  rope.frequencies = rope_frequencies(dims, theta);
  const std::string type = scaling.text_or("rope_type", scaling.text_or("type", "default"));
  if (type == "linear") {
    const float factor = scaling.number("factor");
    for (float& frequency : rope.frequencies) frequency /= factor;
  } else if (type == "llama3") {
    scale_llama3(scaling, rope.frequencies);
  } else if (type == "yarn") {
    scale_yarn(scaling, theta, max_positions, rope);
  } else if (type != "default" && type != "dynamic") {
    // Dynamic scaling changes nothing up to max_positions, and longer sequences are refused.
    fail("{}: rope scaling \"{}\" is not supported (default, linear, dynamic, llama3 and yarn are)",
         reader.file(), type);
  }
  for (const float frequency : rope.frequencies) {
    if (!std::isfinite(frequency) || frequency < 0) {
      fail("{}: \"{}\" gives a rotary frequency of {}", reader.file(), key, frequency);
    }
  }
  return rope;
}

TensorNames gguf_names() {
  TensorNames names;
  names.embedding = "token_embd";
  names.positions = "position_embd";
  names.final_norm = "output_norm";
  names.head = "output";
  names.attention_norm = "blk.{}.attn_norm";
  names.mlp_norm = "blk.{}.ffn_norm";
  names.attention_out = "blk.{}.attn_output";
  names.up = "blk.{}.ffn_up";
  names.down = "blk.{}.ffn_down";
  return names;
}

namespace {

void check(const Config& config, const std::string& file) {
  const AttentionShape& a = config.attention;
  if (a.heads % a.kv_heads != 0) {
    fail("{}: {} query heads are not a multiple of {} key-value heads", file, a.heads, a.kv_heads);
  }
  if (config.rope.dims > a.head_dim) {
    fail("{}: {} rotary dimensions in a head of {}", file, config.rope.dims, a.head_dim);
  }
  if (config.rope.dims % 2 != 0) {
    fail("{}: {} rotary dimensions: must be even", file, config.rope.dims);
  }
  if (!(config.norm_epsilon > 0)) {
    fail("{}: norm epsilon {} should be positive", file, config.norm_epsilon);
  }
}

}  // namespace

Architecture parse_config(const json& config, const std::string& file) {
  if (!config.is_object()) fail("{}: expected a JSON object", file);
  const ConfigReader reader(config, file);
  const std::string type = reader.text("model_type");
  Architecture architecture;
  if (type == "gpt2") {
    architecture = gpt2_from_hf(reader);
  } else if (type == "gpt_neox") {
    architecture = neox_from_hf(reader);
  } else if (type == "llama" || type == "mistral") {
    architecture = llama_from_hf(reader);
  } else {
    fail("{}: model_type \"{}\" is not supported ({})", file, type, kSupported);
  }
  check(architecture.config, file);
  return architecture;
}

Architecture parse_gguf_config(const json& metadata, const std::string& file) {
  const ConfigReader reader(metadata, file);
  const std::string type = reader.text("general.architecture");
  Architecture architecture;
  if (type == "gpt2") {
    architecture = gpt2_from_gguf(reader);
  } else if (type == "gptneox") {
    architecture = neox_from_gguf(reader);
  } else if (type == "llama") {
    architecture = llama_from_gguf(reader);
  } else {
    fail("{}: general.architecture \"{}\" is not supported ({})", file, type, kSupported);
  }
  check(architecture.config, file);
  return architecture;
}

std::string layer_name(const std::string& pattern, size_t layer) {
  return pattern.empty() ? pattern : fmt::format(fmt::runtime(pattern), layer);
}

void add_prefix(TensorNames& names) {
  for (std::string* name : {&names.embedding, &names.positions, &names.final_norm,
                            &names.attention_norm, &names.mlp_norm, &names.qkv, &names.q, &names.k,
                            &names.v, &names.attention_out, &names.gate, &names.up, &names.down}) {
    if (!name->empty()) *name = names.prefix + *name;
  }
}

FlopCount flops_per_token(const Config& config, size_t window) {
  const double d = static_cast<double>(config.d_model);
  const AttentionShape& a = config.attention;
  const double q = static_cast<double>(a.heads * a.head_dim);
  const double kv = static_cast<double>(a.kv_heads * a.head_dim);
  const double layers = static_cast<double>(config.layers);
  double seen = 0;  // keys that a position sees, on average
  for (size_t t = 1; t <= window; ++t) {
    seen += static_cast<double>(a.window != 0 ? std::min(t, a.window) : t);
  }
  seen /= static_cast<double>(std::max<size_t>(window, 1));
  FlopCount flops;
  flops.attention = layers * (2 * d * (q + 2 * kv) + 2 * q * d + 4 * seen * q);
  flops.mlp = layers * 2 * d * static_cast<double>(config.d_mlp) * (config.gated_mlp ? 3 : 2);
  flops.head = 2 * d * static_cast<double>(config.vocab);
  return flops;
}

}  // namespace halflin
