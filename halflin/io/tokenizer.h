// Text to token ids and back, with ids identical to Hugging Face tokenizers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/io/utf8.h"  // find_invalid_utf8

namespace halflin {

class Tokenizer {
 public:
  // tokenizer.json text. `name` is used in messages. Byte-level BPE and sentencepiece-style BPE
  // with byte fallback; other models, normalisers, pre-tokenisers and decoders are refused by name.
  static Tokenizer from_json(std::string_view json_text, const std::string& name);
  // A Hugging Face directory: tokenizer.json, and tokenizer_config.json (beside it, if there) for
  // add_bos_token.
  static Tokenizer from_directory(const std::filesystem::path& directory);
  // GGUF metadata (tokenizer.ggml.*).
  static Tokenizer from_gguf(const nlohmann::json& metadata, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of `text`, valid UTF-8 (Error with the byte offset where it is not). No BOS or EOS is
  // added; added tokens that occur in the text become their ids. Equals tokenizers' encode(text,
  // add_special_tokens=False).
  std::vector<int32_t> encode(std::string_view text) const;
  // Bytes of the ids; may be invalid UTF-8 where ids cut a character. Unknown ids are an Error.
  // Special tokens are written as their text.
  std::string decode(std::span<const int32_t> ids) const;
  // The bytes one id stands for, as decode writes it in the middle of a text.
  std::string token_bytes(int32_t id) const;

  size_t size() const;              // number of ids: highest id + 1
  std::string description() const;  // e.g. "byte-level BPE, 49152 tokens, smollm pre-tokeniser"
  // The BOS id where the tokenizer's own configuration says that one is to be added.
  std::optional<int32_t> added_bos() const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  bool is_special(int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace halflin
