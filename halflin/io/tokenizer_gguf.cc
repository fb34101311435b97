// Tokenizers in the metadata of a GGUF file: tokenizer.ggml.*.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "halflin/base/error.h"
#include "halflin/io/printable.h"
#include "halflin/io/tokenizer_spec.h"

namespace halflin {
namespace {

using nlohmann::json;

// llama.cpp's token types.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What the names of tokenizer.ggml.pre stand for in Hugging Face's tokenizers.
struct PreTokenizerRow {
  std::string_view name;
  std::string_view pattern;
  bool digits_first;  // each digit alone, before the pattern
  bool nfc;
  bool ignore_merges;
};

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<PreTokenizerRow, 13> kPreTokenizers = {{
    {"default", kGpt2Pattern, false, false, false},
    {"gpt-2", kGpt2Pattern, false, false, false},
    {"phi-2", kGpt2Pattern, false, false, false},
    {"gpt-neox", kGpt2Pattern, false, true, false},
    {"mpt", kGpt2Pattern, false, true, false},
    {"olmo", kGpt2Pattern, false, true, false},
    {"smollm", kGpt2Pattern, true, false, false},
    {"starcoder", kGpt2Pattern, true, false, false},
    {"refact", kGpt2Pattern, true, false, false},
    {"llama-bpe", kLlama3Pattern, false, false, true},
    {"llama3", kLlama3Pattern, false, false, true},
    {"llama-v3", kLlama3Pattern, false, false, true},
    {"qwen2", kQwen2Pattern, false, true, false},
}};

const PreTokenizerRow& find_pretokenizer(const std::string& pre, const std::string& name) {
  std::string known;
  for (const PreTokenizerRow& row : kPreTokenizers) {
    if (row.name == pre) return row;
    if (!known.empty()) known += ", ";
    known += row.name;
  }
  fail("{}: tokenizer.ggml.pre {} is not supported; known are {}", name, in_quotes(pre), known);
}

// The metadata and the file's name.
struct Source {
  const json& metadata;
  const std::string& name;

  // Null where absent.
  const json* find(const char* key) const {
    const auto it = metadata.find(key);
    return it == metadata.end() ? nullptr : &*it;
  }
  const json& array(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) fail("{}: {} is missing", name, key);
    if (!value->is_array())
      fail("{}: {}: expected an array, found {}", name, key, value->type_name());
    return *value;
  }
  std::string text(const char* key, const char* otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) {
      fail("{}: {}: expected a string, found {}", name, key, value->type_name());
    }
    return value->get<std::string>();
  }
  bool boolean(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      fail("{}: {}: expected true or false, found {}", name, key, value->type_name());
    }
    return value->get<bool>();
  }
  std::optional<int32_t> id(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer()) {
      fail("{}: {}: expected an integer, found {}", name, key, value->type_name());
    }
    // Files say "none" with 2^32 - 1.
    if (value->is_number_unsigned() && *value == 0xffffffffu) return std::nullopt;
    const auto number = value->get<int64_t>();
    if (number < 0 || number > std::numeric_limits<int32_t>::max()) {
      fail("{}: {}: {} is no token id", name, key, number);
    }
    return static_cast<int32_t>(number);
  }
};

void read_tokens(const Source& source, TokenizerSpec& spec) {
  const json& tokens = source.array("tokenizer.ggml.tokens");
  std::vector<std::pair<std::string, int64_t>> list;
  list.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].is_string()) {
      fail("{}: tokenizer.ggml.tokens[{}]: expected a string, found {}", source.name, i,
           tokens[i].type_name());
    }
    list.emplace_back(tokens[i].get<std::string>(), static_cast<int64_t>(i));
    if (find_invalid_utf8(list.back().first) != std::string::npos) {
      fail("{}: tokenizer.ggml.tokens[{}] is not UTF-8", source.name, i);
    }
  }
  spec.bpe.vocabulary = make_vocabulary(std::move(list), source.name + ": tokenizer.ggml.tokens");
}

void read_added_tokens(const Source& source, TokenizerSpec& spec) {
  if (source.find("tokenizer.ggml.token_type") == nullptr) return;
  const json& types = source.array("tokenizer.ggml.token_type");
  const std::vector<std::string>& tokens = spec.bpe.vocabulary.tokens;
  if (types.size() != tokens.size()) {
    fail("{}: tokenizer.ggml.token_type has {} entries for {} tokens", source.name, types.size(),
         tokens.size());
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!types[i].is_number_integer()) {
      fail("{}: tokenizer.ggml.token_type[{}]: expected an integer, found {}", source.name, i,
           types[i].type_name());
    }
    const auto type = types[i].get<int64_t>();
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    // Converters fill a vocabulary up to the embedding's rows with [PAD<id>], user-defined.
    if (type == kUserDefined && tokens[i] == fmt::format("[PAD{}]", i)) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.content = tokens[i];
    token.special = type != kUserDefined;
    spec.added.push_back(std::move(token));
  }
}

void read_byte_level(const Source& source, TokenizerSpec& spec) {
  const std::string pre = source.text("tokenizer.ggml.pre", "gpt-2");
  const PreTokenizerRow& row = find_pretokenizer(pre, source.name);
  spec.pretokenizer_name = pre;
  spec.bpe.byte_level = true;
  spec.bpe.ignore_merges = row.ignore_merges;
  // Older files of GPT-NeoX do not say what comes before the merges; its tokenizer composes first.
  const bool neox = source.text("general.architecture", "") == "gptneox" &&
                    (pre == "default" || source.find("tokenizer.ggml.pre") == nullptr);
  if (row.nfc || neox) spec.normalizer.emplace_back();
  if (row.digits_first) {
    PreTokenizerStep digits;
    digits.kind = PreTokenizerStep::Kind::kDigits;
    digits.individual_digits = true;
    spec.pretokenizer.push_back(std::move(digits));
  }
  PreTokenizerStep words;
  words.pattern.emplace(row.pattern, source.name + ": tokenizer.ggml.pre");
  words.add_prefix_space = source.boolean("tokenizer.ggml.add_space_prefix", false);
  spec.pretokenizer.push_back(std::move(words));

  const json& merges = source.array("tokenizer.ggml.merges");
  if (merges.size() >= std::numeric_limits<uint32_t>::max()) {
    fail("{}: tokenizer.ggml.merges: too many", source.name);
  }
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string where = fmt::format("{}: tokenizer.ggml.merges[{}]", source.name, i);
    if (!merges[i].is_string()) {
      fail("{}: expected a string, found {}", where, merges[i].type_name());
    }
    const std::string_view merge = merges[i].get_ref<const std::string&>();
    // A token may start with a space in some vocabularies; never is it empty.
    const size_t space = merge.find(' ', 1);
    if (merge.empty() || space == std::string_view::npos) {
      fail("{}: expected two tokens with a space between, found {}", where, in_quotes(merge));
    }
    add_merge(spec.bpe, merge.substr(0, space), merge.substr(space + 1), static_cast<uint32_t>(i),
              where);
  }
}

struct ScoredMerge {
  std::string_view left;
  std::string_view right;
  double score;
  size_t left_chars;
  size_t right_chars;
};

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// Sentencepiece keeps a score per token instead of a list of merges. Hugging Face's conversion
// makes the list from it: every way to cut a token into two others, ordered by the token's score,
// then by the length of the parts, the longest first.
void merges_from_scores(const Source& source, Bpe& bpe) {
  constexpr size_t kLongestToken = 1024;
  const json& scores = source.array("tokenizer.ggml.scores");
  const Vocabulary& vocabulary = bpe.vocabulary;
  if (scores.size() != vocabulary.tokens.size()) {
    fail("{}: tokenizer.ggml.scores has {} entries for {} tokens", source.name, scores.size(),
         vocabulary.tokens.size());
  }
  std::vector<ScoredMerge> merges;
  std::vector<std::pair<std::pair<int32_t, int32_t>, ScoredMerge>> cuts;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (!scores[i].is_number() || !std::isfinite(scores[i].get<double>())) {
      fail("{}: tokenizer.ggml.scores[{}]: expected a finite number", source.name, i);
    }
    const std::string_view token = vocabulary.tokens[i];
    if (token.size() > kLongestToken) continue;
    cuts.clear();
    for (size_t cut = 0; cut < token.size();) {
      cut += utf8_length(token[cut]);
      if (cut >= token.size()) break;
      const std::string_view left = token.substr(0, cut);
      const std::string_view right = token.substr(cut);
      const int32_t left_id = vocabulary.find(left);
      const int32_t right_id = left_id < 0 ? -1 : vocabulary.find(right);
      if (right_id < 0) continue;
      cuts.push_back(
          {{left_id, right_id},
           {left, right, scores[i].get<double>(), count_chars(left), count_chars(right)}});
    }
    std::sort(cuts.begin(), cuts.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& cut : cuts) merges.push_back(cut.second);
  }
  std::stable_sort(merges.begin(), merges.end(), [](const ScoredMerge& a, const ScoredMerge& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.left_chars != b.left_chars) return a.left_chars > b.left_chars;
    return a.right_chars > b.right_chars;
  });
  uint32_t rank = 0;
  for (const ScoredMerge& merge : merges) {
    add_merge(bpe, merge.left, merge.right, rank++, source.name + ": tokenizer.ggml.tokens");
  }
}

void read_sentencepiece(const Source& source, TokenizerSpec& spec) {
  for (const char* key : {"tokenizer.ggml.remove_extra_whitespaces"}) {
    if (source.boolean(key, false)) fail("{}: {} is not supported", source.name, key);
  }
  if (source.find("tokenizer.ggml.precompiled_charsmap") != nullptr) {
    fail("{}: tokenizer.ggml.precompiled_charsmap is not supported", source.name);
  }
  const bool add_space = source.boolean("tokenizer.ggml.add_space_prefix", true);
  spec.pretokenizer_name = "no";
  if (add_space) {
    NormalizerStep prepend;
    prepend.kind = NormalizerStep::Kind::kPrepend;
    prepend.to = kMetaspace;
    spec.normalizer.push_back(std::move(prepend));
  }
  NormalizerStep spaces;
  spaces.kind = NormalizerStep::Kind::kReplace;
  spaces.from = " ";
  spaces.to = kMetaspace;
  spec.normalizer.push_back(std::move(spaces));

  spec.bpe.byte_fallback = true;
  spec.bpe.fuse_unknown = true;
  if (const auto unknown = source.id("tokenizer.ggml.unknown_token_id")) {
    if (static_cast<size_t>(*unknown) >= spec.bpe.vocabulary.tokens.size()) {
      fail("{}: tokenizer.ggml.unknown_token_id: {} is not below the {} tokens", source.name,
           *unknown, spec.bpe.vocabulary.tokens.size());
    }
    spec.bpe.unknown = *unknown;
  }
  merges_from_scores(source, spec.bpe);

  spec.decoder.kind = DecoderSpec::Kind::kReplace;
  spec.decoder.replacements = {{std::string(kMetaspace), " "}};
  spec.decoder.byte_fallback = true;
  if (add_space) {
    spec.decoder.strip = " ";
    spec.decoder.strip_start = 1;
  }
}

}  // namespace

TokenizerSpec read_tokenizer_gguf(const json& metadata, const std::string& name) {
  const Source source{metadata, name};
  if (!metadata.is_object() || source.find("tokenizer.ggml.model") == nullptr) {
    fail("{}: tokenizer.ggml.model is missing", name);
  }
  TokenizerSpec spec;
  spec.name = name;
  read_tokens(source, spec);
  const std::string model = source.text("tokenizer.ggml.model", "");
  // Like llama.cpp: only sentencepiece vocabularies get a BOS unless told otherwise.
  bool add_bos = false;
  if (model == "gpt2") {
    read_byte_level(source, spec);
  } else if (model == "llama") {
    read_sentencepiece(source, spec);
    add_bos = true;
  } else {
    fail("{}: tokenizer.ggml.model {} is not supported; known are gpt2, llama", name,
         in_quotes(model));
  }
  read_added_tokens(source, spec);
  spec.bos = source.id("tokenizer.ggml.bos_token_id");
  spec.eos = source.id("tokenizer.ggml.eos_token_id");
  if (source.boolean("tokenizer.ggml.add_bos_token", add_bos)) spec.added_bos = spec.bos;
  return spec;
}

}  // namespace halflin
