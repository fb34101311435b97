// A Hugging Face tokenizer as the metadata of a GGUF file.
#include <set>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/gguf_writer.h"
#include "halflin/io/json.h"
#include "halflin/io/printable.h"
#include "halflin/io/tokenizer_spec.h"

namespace halflin {

namespace {

using nlohmann::json;

// llama.cpp's token types.
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

bool is_type(const json& step, const char* type) {
  const json* found = find_member(step, "type");
  return found != nullptr && *found == type;
}

bool flag(const json& step, const char* key, bool otherwise) {
  const json* found = find_member(step, key);
  return found != nullptr && found->is_boolean() ? found->get<bool>() : otherwise;
}

// ByteLevel as GPT-2 has it, or with `use_regex` false as what follows a Split.
bool is_byte_level(const json& step, bool use_regex) {
  return is_type(step, "ByteLevel") && !flag(step, "add_prefix_space", true) &&
         flag(step, "use_regex", true) == use_regex;
}

// The split at Llama 3's pattern.
bool is_llama3_split(const json& step) {
  const json* pattern = find_member(step, "pattern");
  const json* regex = pattern == nullptr ? nullptr : find_member(*pattern, "Regex");
  const json* behavior = find_member(step, "behavior");
  return is_type(step, "Split") && regex != nullptr && *regex == std::string(kLlama3Pattern) &&
         behavior != nullptr && *behavior == "Isolated" && !flag(step, "invert", false);
}

// tokenizer.ggml.pre: the name that readers of GGUF know what comes before the merges by.
std::string pretokenizer_name(const json& tokenizer, const TokenizerSpec& spec,
                              const std::string& name) {
  const json* pre = find_member(tokenizer, "pre_tokenizer");
  const json* steps = pre == nullptr ? nullptr : find_member(*pre, "pretokenizers");
  const bool two = steps != nullptr && steps->is_array() && steps->size() == 2;
  const bool ignores = spec.bpe.ignore_merges;
  const json* normalizer = find_member(tokenizer, "normalizer");
  const bool plain = normalizer == nullptr || normalizer->is_null();
  const bool nfc = !plain && is_type(*normalizer, "NFC");
  if (pre != nullptr && is_byte_level(*pre, true) && !ignores) {
    if (nfc) return "olmo";
    if (plain) return "gpt-2";
  } else if (two && plain && !ignores && is_type((*steps)[0], "Digits") &&
             flag((*steps)[0], "individual_digits", false) && is_byte_level((*steps)[1], true)) {
    return "smollm";
  } else if (two && plain && ignores && is_llama3_split((*steps)[0]) &&
             is_byte_level((*steps)[1], false)) {
    return "llama-bpe";
  }
  fail("{}: this normalizer and pre-tokenizer ({}) have no name in GGUF", name,
       spec.pretokenizer_name);
}

void add_tokens(const TokenizerSpec& spec, size_t vocab, GgufMetadata& out) {
  const Vocabulary& vocabulary = spec.bpe.vocabulary;
  std::vector<std::string> tokens(vocab);
  std::vector<int32_t> types(vocab, kUnused);
  for (size_t id = 0; id < vocab; ++id) {
    const bool present = id < vocabulary.present.size() && vocabulary.present[id];
    // Rows of the embedding that no token has.
    tokens[id] = present ? vocabulary.tokens[id] : fmt::format("[PAD{}]", id);
    if (present) types[id] = kNormal;
  }
  for (const AddedToken& token : spec.added) {
    const auto id = static_cast<size_t>(token.id);
    tokens[id] = token.content;
    types[id] = token.special ? kControl : kUserDefined;
  }
  out.emplace_back("tokenizer.ggml.tokens", std::move(tokens));
  out.emplace_back("tokenizer.ggml.token_type", std::move(types));
}

std::vector<std::string> read_merges(const json& tokenizer, const std::string& name) {
  const json& merges = tokenizer.at("model").at("merges");
  std::vector<std::string> list;
  for (const json& merge : merges) {  // read_tokenizer_json has checked them
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (!text.starts_with("#version")) list.push_back(text);
      continue;
    }
    const auto& left = merge[0].get_ref<const std::string&>();
    const auto& right = merge[1].get_ref<const std::string&>();
    if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
      fail("{}: the merge of {} and {}: GGUF separates them by a space", name, in_quotes(left),
           in_quotes(right));
    }
    list.push_back(fmt::format("{} {}", left, right));
  }
  return list;
}

}  // namespace

GgufMetadata tokenizer_metadata(const std::filesystem::path& directory, size_t vocab) {
  const std::filesystem::path path = directory / "tokenizer.json";
  const std::string name = path.string();
  const std::string text = read_file(path);
  TokenizerSpec spec = read_tokenizer_json(text, name);
  const std::filesystem::path config = directory / "tokenizer_config.json";
  json settings = json::object();
  if (std::filesystem::exists(config)) {
    const std::string config_text = read_file(config);
    apply_tokenizer_config(spec, config_text, config.string());
    settings = parse_json(config_text, config.string());
  }
  finish_tokenizer(spec);
  if (spec.size > vocab) {
    fail("{}: ids up to {}, the embedding has only {} rows", name, spec.size - 1, vocab);
  }
  if (!spec.bpe.byte_level) {
    fail("{}: only byte-level BPE is written to GGUF, this is sentencepiece-style", name);
  }
  const json tokenizer = parse_json(text, name);
  GgufMetadata out;
  out.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  out.emplace_back("tokenizer.ggml.pre", pretokenizer_name(tokenizer, spec, name));
  add_tokens(spec, vocab, out);
  out.emplace_back("tokenizer.ggml.merges", read_merges(tokenizer, name));
  const auto add_id = [&](const char* key, const std::optional<int32_t>& id) {
    if (id) out.emplace_back(key, static_cast<uint32_t>(*id));
  };
  add_id("tokenizer.ggml.bos_token_id", spec.bos);
  add_id("tokenizer.ggml.eos_token_id", spec.eos);
  if (spec.bpe.unknown >= 0) add_id("tokenizer.ggml.unknown_token_id", spec.bpe.unknown);
  out.emplace_back("tokenizer.ggml.add_bos_token", spec.added_bos.has_value());
  const std::filesystem::path chat = directory / "chat_template.jinja";
  const json* in_config = find_member(settings, "chat_template");
  if (std::filesystem::exists(chat)) {
    out.emplace_back("tokenizer.chat_template", read_file(chat));
  } else if (in_config != nullptr && in_config->is_string()) {
    out.emplace_back("tokenizer.chat_template", in_config->get<std::string>());
  }
  return out;
}

}  // namespace halflin
