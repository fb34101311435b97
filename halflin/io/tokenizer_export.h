// A GGUF file's tokenizer as the files of a Hugging Face directory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halflin {

struct TokenizerFiles {
  nlohmann::json tokenizer;         // tokenizer.json
  nlohmann::json tokenizer_config;  // tokenizer_config.json: BOS, EOS, the chat template
};

// `metadata` as Tokenizer::from_gguf takes it; the files give the same ids. Throws Error as that
// does, and where a prefix space comes before another pattern than GPT-2's, which no tokenizer.json
// can say.
TokenizerFiles export_tokenizer(const nlohmann::json& metadata, const std::string& name);

}  // namespace halflin
