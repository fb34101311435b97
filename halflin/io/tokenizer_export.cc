#include "halflin/io/tokenizer_export.h"

#include <algorithm>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/io/json.h"
#include "halflin/io/tokenizer_spec.h"

namespace halflin {

namespace {

using Json = nlohmann::json;

Json sequence(const char* of, const std::vector<Json>& steps) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return steps.front();
  return {{"type", "Sequence"}, {of, steps}};
}

Json normalizer(const TokenizerSpec& spec) {
  std::vector<Json> steps;
  for (const NormalizerStep& step : spec.normalizer) {
    if (step.kind == NormalizerStep::Kind::kUnicode) {
      steps.push_back({{"type", "NFC"}});
    } else if (step.kind == NormalizerStep::Kind::kPrepend) {
      steps.push_back({{"type", "Prepend"}, {"prepend", step.to}});
    } else {
      steps.push_back(
          {{"type", "Replace"}, {"pattern", {{"String", step.from}}}, {"content", step.to}});
    }
  }
  return sequence("normalizers", steps);
}

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json pretokenizer(const TokenizerSpec& spec) {
  std::vector<Json> steps;
  for (const PreTokenizerStep& step : spec.pretokenizer) {
    if (step.kind == PreTokenizerStep::Kind::kDigits) {
      steps.push_back({{"type", "Digits"}, {"individual_digits", step.individual_digits}});
    } else if (step.pattern->source() == kGpt2Pattern) {
      steps.push_back(byte_level(step.add_prefix_space, true));
    } else {
      if (step.add_prefix_space) {
        fail("{}: a prefix space before this pattern has no place in a tokenizer.json", spec.name);
      }
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", step.pattern->source()}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
      steps.push_back(byte_level(false, false));
    }
  }
  return sequence("pretokenizers", steps);
}

Json decoder(const TokenizerSpec& spec) {
  const DecoderSpec& d = spec.decoder;
  if (d.kind == DecoderSpec::Kind::kByteLevel) return byte_level(true, true);
  std::vector<Json> steps;
  for (const auto& [from, to] : d.replacements) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}});
  }
  if (d.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (!d.strip.empty()) {
    steps.push_back(
        {{"type", "Strip"}, {"content", d.strip}, {"start", d.strip_start}, {"stop", 0}});
  }
  return sequence("decoders", steps);
}

Json merges(const Bpe& bpe) {
  struct Merge {
    uint64_t rank;
    uint64_t pair;  // left id << 32 | right id
  };
  std::vector<Merge> list;
  bpe.merges.for_each([&](uint64_t pair, uint64_t merged) {
    list.push_back({merged >> 32, pair});
  });
  std::ranges::sort(list, {}, &Merge::rank);
  Json out = Json::array();
  const std::vector<std::string>& tokens = bpe.vocabulary.tokens;
  for (const Merge& merge : list) {
    out.push_back({tokens[merge.pair >> 32], tokens[merge.pair & 0xffffffffu]});
  }
  return out;
}

Json model(const Bpe& bpe) {
  Json vocabulary = Json::object();
  for (size_t i = 0; i < bpe.vocabulary.tokens.size(); ++i) {
    if (bpe.vocabulary.present[i]) vocabulary[bpe.vocabulary.tokens[i]] = i;
  }
  Json out = {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", bpe.fuse_unknown},
              {"byte_fallback", bpe.byte_fallback},
              {"ignore_merges", bpe.ignore_merges}};
  if (bpe.unknown >= 0) {
    out["unk_token"] = bpe.vocabulary.tokens[static_cast<size_t>(bpe.unknown)];
  }
  out["vocab"] = std::move(vocabulary);
  out["merges"] = merges(bpe);
  return out;
}

}  // namespace

TokenizerFiles export_tokenizer(const nlohmann::json& metadata, const std::string& name) {
  const TokenizerSpec spec = read_tokenizer_gguf(metadata, name);
  TokenizerFiles files;
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  files.tokenizer = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", normalizer(spec)},
                     {"pre_tokenizer", pretokenizer(spec)},
                     {"post_processor", nullptr},
                     {"decoder", decoder(spec)},
                     {"model", model(spec.bpe)}};

  Json& config = files.tokenizer_config;
  config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
            {"clean_up_tokenization_spaces", false},
            {"add_bos_token", spec.added_bos.has_value()}};
  const std::vector<std::string>& tokens = spec.bpe.vocabulary.tokens;
  const auto put = [&](const char* key, std::optional<int32_t> id) {
    if (id && static_cast<size_t>(*id) < tokens.size())
      config[key] = tokens[static_cast<size_t>(*id)];
  };
  put("bos_token", spec.bos);
  put("eos_token", spec.eos);
  const nlohmann::json* chat = find_member(metadata, "tokenizer.chat_template");
  if (chat != nullptr && chat->is_string()) config["chat_template"] = *chat;
  return files;
}

}  // namespace halflin
