// What a tokenizer is made of, whichever file it came from. Internal to io/: readers fill it,
// tokenizer.cc runs it.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "halflin/io/added_tokens.h"
#include "halflin/io/bpe.h"
#include "halflin/io/normalizer.h"
#include "halflin/io/pretokenizer.h"

namespace halflin {

struct DecoderSpec {
  enum class Kind : uint8_t {
    kByteLevel,  // each character spells a byte; tokens that do not are text
    kReplace,    // `from` becomes `to`; <0x..> becomes its byte if byte_fallback
    kMetaspace,  // `from` becomes a space, or in the first token nothing if `drop_first`
  };
  Kind kind = Kind::kByteLevel;
  std::vector<std::array<std::string, 2>> replacements;  // kReplace: from, to
  bool byte_fallback = false;
  std::string metaspace = std::string(kMetaspace);
  bool drop_first = false;
  std::string strip;       // kReplace: one character, taken from the start of the whole text
  size_t strip_start = 0;  // up to this many times
};

struct TokenizerSpec {
  std::string name;  // for messages: the file
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pretokenizer;
  std::string pretokenizer_name;  // for the description
  Bpe bpe;
  std::vector<AddedToken> added;
  DecoderSpec decoder;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> added_bos;

  // Derived by finish_tokenizer.
  TokenTrie raw_trie;         // added tokens found in the text as it comes
  TokenTrie normalized_trie;  // and those found once it is normalised
  std::unordered_map<int32_t, size_t> added_by_id;
  size_t size = 0;  // highest id + 1
};

// Checks and indexes a spec whose parts are filled in. Throws Error on contradicting added tokens
// or special ids that nothing has.
void finish_tokenizer(TokenizerSpec& spec);

// Llama 3's pattern.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// The readers. Neither calls finish_tokenizer.
TokenizerSpec read_tokenizer_json(std::string_view text, const std::string& name);
TokenizerSpec read_tokenizer_gguf(const nlohmann::json& metadata, const std::string& name);
// bos_token, eos_token and add_bos_token of a tokenizer_config.json.
void apply_tokenizer_config(TokenizerSpec& spec, std::string_view text, const std::string& name);

}  // namespace halflin
