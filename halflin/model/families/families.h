// One file a family: its config keys and tensor names. parse_config and parse_gguf_config look
// here.
#pragma once

#include "halflin/model/config.h"

namespace halflin {

// Typed access to config.json or GGUF metadata; errors name the file and the key.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, const std::string& file)
      : object_(object), file_(file) {}

  bool has(const std::string& key) const;  // present and not null
  const nlohmann::json& object() const { return object_; }
  const std::string& file() const { return file_; }
  size_t count(const std::string& key) const;  // a positive integer
  size_t count_or(const std::string& key, size_t otherwise) const;
  float number(const std::string& key) const;
  float number_or(const std::string& key, float otherwise) const;
  bool flag_or(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& otherwise) const;
  // Error unless the key is absent or equals `value`.
  void require(const std::string& key, bool value, const char* why) const;

 private:
  const nlohmann::json& object_;
  const std::string& file_;
};

// Hugging Face's activation name.
Activation parse_activation(const ConfigReader& reader, const std::string& name);

// config.json's rope_scaling / rope_parameters over the plain frequencies theta^(-2i/dims).
Rope make_rope(const ConfigReader& reader, size_t dims, float default_theta, size_t max_positions);
// theta^(-2i/dims), no scaling.
std::vector<float> rope_frequencies(size_t dims, float theta);

Architecture gpt2_from_hf(const ConfigReader& reader);
Architecture gpt2_from_gguf(const ConfigReader& reader);
Architecture neox_from_hf(const ConfigReader& reader);
Architecture neox_from_gguf(const ConfigReader& reader);
Architecture llama_from_hf(const ConfigReader& reader);
Architecture llama_from_gguf(const ConfigReader& reader);

// Tensor names that all GGUF families share.
TensorNames gguf_names();

}  // namespace halflin
