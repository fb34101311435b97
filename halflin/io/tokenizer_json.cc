// tokenizer.json, the format of Hugging Face's tokenizers library.
#include <limits>
#include <utility>

#include "halflin/base/error.h"
#include "halflin/io/json.h"
#include "halflin/io/printable.h"
#include "halflin/io/tokenizer_spec.h"

namespace halflin {
namespace {

using nlohmann::json;

// A value in the file and the way to it, for messages.
struct Node {
  const json* value;
  std::string path;  // "tokenizer.json: model.merges[3]"

  const char* type() const { return value->type_name(); }
  bool has(const char* key) const {
    return value->is_object() && value->contains(key) && !value->at(key).is_null();
  }
  // An absent member reads as null.
  Node at(const char* key) const {
    static const json null;
    if (!value->is_object()) fail("{}: expected an object, found {}", path, type());
    const auto it = value->find(key);
    const std::string separator = path.ends_with(':') ? " " : ".";
    return {it == value->end() ? &null : &*it, path + separator + key};
  }
  Node at(size_t index) const { return {&(*value)[index], fmt::format("{}[{}]", path, index)}; }
  size_t size() const {
    if (!value->is_array()) fail("{}: expected an array, found {}", path, type());
    return value->size();
  }
  const std::string& text() const {
    if (!value->is_string()) fail("{}: expected a string, found {}", path, type());
    return value->get_ref<const std::string&>();
  }
  std::string text_or(const char* otherwise) const { return value->is_null() ? otherwise : text(); }
  bool boolean_or(bool otherwise) const {
    if (value->is_null()) return otherwise;
    if (!value->is_boolean()) fail("{}: expected true or false, found {}", path, type());
    return value->get<bool>();
  }
  int64_t integer() const {
    if (value->is_number_unsigned() &&
        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail("{}: {} is too large", path, value->get<uint64_t>());
    }
    if (!value->is_number_integer()) fail("{}: expected an integer, found {}", path, type());
    return value->get<int64_t>();
  }
  int32_t id() const {
    const int64_t number = integer();
    if (number < 0 || number > std::numeric_limits<int32_t>::max()) {
      fail("{}: {} is no token id", path, number);
    }
    return static_cast<int32_t>(number);
  }
  int64_t integer_or(int64_t otherwise) const { return value->is_null() ? otherwise : integer(); }
};

json parse(std::string_view text, const std::string& name) {
  json document = parse_json(text, name);
  if (!document.is_object()) {
    fail("{}: expected an object, found {}", name, document.type_name());
  }
  return document;
}

[[noreturn]] void refuse(const Node& node, std::string_view what) {
  fail("{}: {} is not supported", node.path, in_quotes(what));
}

// Calls each(step) for the node, or for the members of a Sequence of them, however deep.
template <class Each>
void for_each_step(const Node& node, const char* list_key, const Each& each, int depth = 0) {
  if (node.value->is_null()) return;
  if (node.at("type").text() != "Sequence") {
    each(node);
    return;
  }
  if (depth == 8) fail("{}: sequences nested too deep", node.path);
  const Node list = node.at(list_key);
  for (size_t i = 0; i < list.size(); ++i) for_each_step(list.at(i), list_key, each, depth + 1);
}

// A pattern is {"String": text} or {"Regex": text}.
void read_pattern(const Node& node, std::string& literal, std::optional<Regex>& regex) {
  if (node.has("String")) {
    literal = node.at("String").text();
  } else {
    regex.emplace(node.at("Regex").text(), node.path);
  }
}

NormalizerStep read_normalizer_step(const Node& node) {
  const std::string& type = node.at("type").text();
  NormalizerStep step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = NormalizerStep::Kind::kUnicode;
    step.form = type == "NFC"    ? NormalForm::kNFC
                : type == "NFD"  ? NormalForm::kNFD
                : type == "NFKC" ? NormalForm::kNFKC
                                 : NormalForm::kNFKD;
  } else if (type == "Prepend") {
    step.kind = NormalizerStep::Kind::kPrepend;
    step.to = node.at("prepend").text();
  } else if (type == "Replace") {
    step.kind = NormalizerStep::Kind::kReplace;
    read_pattern(node.at("pattern"), step.from, step.pattern);
    step.to = node.at("content").text();
  } else {
    refuse(node, type);
  }
  return step;
}

SplitBehavior read_behavior(const Node& node) {
  const std::string& name = node.text();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  refuse(node, name);
}

// One character, U+2581 by default.
std::string read_replacement(const Node& node) {
  std::string replacement = node.value->is_null() ? std::string(kMetaspace) : node.text();
  if (replacement.empty() || replacement.size() != utf8_length(replacement[0])) {
    fail("{}: expected one character, found {}", node.path, in_quotes(replacement));
  }
  return replacement;
}

PreTokenizerStep::Prepend read_prepend_scheme(const Node& node) {
  const Node scheme = node.at("prepend_scheme");
  if (scheme.value->is_null()) {
    return node.at("add_prefix_space").boolean_or(true) ? PreTokenizerStep::Prepend::kAlways
                                                        : PreTokenizerStep::Prepend::kNever;
  }
  const std::string& name = scheme.text();
  if (name == "always") return PreTokenizerStep::Prepend::kAlways;
  if (name == "first") return PreTokenizerStep::Prepend::kFirst;
  if (name == "never") return PreTokenizerStep::Prepend::kNever;
  refuse(scheme, name);
}

PreTokenizerStep read_pretokenizer_step(const Node& node) {
  const std::string& type = node.at("type").text();
  PreTokenizerStep step;
  if (type == "ByteLevel") {
    step.add_prefix_space = node.at("add_prefix_space").boolean_or(true);
    if (node.at("use_regex").boolean_or(true)) step.pattern.emplace(kGpt2Pattern, node.path);
  } else if (type == "Digits") {
    step.kind = PreTokenizerStep::Kind::kDigits;
    step.individual_digits = node.at("individual_digits").boolean_or(false);
  } else if (type == "Split") {
    read_pattern(node.at("pattern"), step.literal, step.pattern);
    step.behavior = read_behavior(node.at("behavior"));
    step.invert = node.at("invert").boolean_or(false);
  } else if (type == "Metaspace") {
    step.kind = PreTokenizerStep::Kind::kMetaspace;
    step.replacement = read_replacement(node.at("replacement"));
    step.prepend = read_prepend_scheme(node);
    step.split = node.at("split").boolean_or(true);
  } else {
    refuse(node, type);
  }
  return step;
}

void read_pretokenizer(const Node& node, TokenizerSpec& spec) {
  for_each_step(node, "pretokenizers", [&](const Node& each) {
    // What would follow saw the bytes' spellings instead of the text.
    if (spec.bpe.byte_level) fail("{}: a step after ByteLevel is not supported", each.path);
    spec.pretokenizer.push_back(read_pretokenizer_step(each));
    const std::string& type = each.at("type").text();
    if (type == "ByteLevel") spec.bpe.byte_level = true;
    if (!spec.pretokenizer_name.empty()) spec.pretokenizer_name += "+";
    spec.pretokenizer_name += type;
  });
  if (spec.pretokenizer_name.empty()) spec.pretokenizer_name = "no";
}

// Replace, ByteFallback, Fuse, Strip: what sentencepiece conversions carry.
void read_decoder_step(const Node& node, DecoderSpec& decoder, bool& fused) {
  const std::string& type = node.at("type").text();
  if (type == "Replace") {
    std::string from;
    std::optional<Regex> regex;
    read_pattern(node.at("pattern"), from, regex);
    if (regex) refuse(node, "Replace with a Regex");
    decoder.replacements.push_back({from, node.at("content").text()});
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Strip") {
    if (!fused) refuse(node, "Strip before Fuse");
    if (!decoder.strip.empty()) refuse(node, "a second Strip");
    if (node.at("stop").integer_or(0) != 0) refuse(node, "Strip at the end");
    decoder.strip = read_replacement(node.at("content"));
    const int64_t start = node.at("start").integer();
    if (start < 0) fail("{}: start {} is negative", node.path, start);
    decoder.strip_start = static_cast<size_t>(start);
  } else {
    refuse(node, type);
  }
}

DecoderSpec read_decoder(const Node& node, const TokenizerSpec& spec) {
  DecoderSpec decoder;
  if (node.value->is_null()) {
    if (!spec.bpe.byte_level) fail("{}: a tokenizer without decoder is not supported", node.path);
    return decoder;
  }
  size_t steps = 0;
  bool alone = false;  // ByteLevel and Metaspace stand for a whole decoder
  bool fused = false;
  decoder.kind = DecoderSpec::Kind::kReplace;
  for_each_step(node, "decoders", [&](const Node& each) {
    const std::string& type = each.at("type").text();
    ++steps;
    if (type == "ByteLevel") {
      alone = true;
      decoder.kind = DecoderSpec::Kind::kByteLevel;
    } else if (type == "Metaspace") {
      alone = true;
      decoder.kind = DecoderSpec::Kind::kMetaspace;
      decoder.metaspace = read_replacement(each.at("replacement"));
      decoder.drop_first = read_prepend_scheme(each) != PreTokenizerStep::Prepend::kNever;
    } else {
      read_decoder_step(each, decoder, fused);
    }
    if (alone && steps > 1) fail("{}: {} beside other decoders is not supported", each.path, type);
  });
  return decoder;
}

void read_vocabulary(const Node& node, Bpe& bpe) {
  if (!node.value->is_object()) fail("{}: expected an object, found {}", node.path, node.type());
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(node.value->size());
  for (const auto& [token, id] : node.value->items()) {
    if (!id.is_number_integer()) {
      fail("{}: the id of {} is {}, not an integer", node.path, in_quotes(token), id.type_name());
    }
    tokens.emplace_back(token, Node{&id, node.path}.integer());
  }
  bpe.vocabulary = make_vocabulary(std::move(tokens), node.path);
}

// Each merge is "left right" or ["left", "right"].
void read_merges(const Node& node, Bpe& bpe) {
  const size_t count = node.size();
  if (count >= std::numeric_limits<uint32_t>::max()) fail("{}: too many merges", node.path);
  uint32_t rank = 0;
  for (size_t i = 0; i < count; ++i) {
    const json& merge = (*node.value)[i];
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        fail("{}: expected two tokens with a space between, found {}", node.at(i).path,
             in_quotes(text));
      }
      const std::string_view view(text);
      add_merge(bpe, view.substr(0, space), view.substr(space + 1), rank, node.at(i).path);
    } else if (merge.is_array() && merge.size() == 2) {
      add_merge(bpe, node.at(i).at(size_t{0}).text(), node.at(i).at(size_t{1}).text(), rank,
                node.at(i).path);
    } else {
      fail("{}: expected a string or two strings", node.at(i).path);
    }
    ++rank;
  }
}

void read_model(const Node& node, Bpe& bpe) {
  // Older files leave the type out.
  const std::string type = node.at("type").text_or("BPE");
  if (type != "BPE") refuse(node.at("type"), type);
  const Node dropout = node.at("dropout");
  if (!dropout.value->is_null() && !(dropout.value->is_number() && *dropout.value == 0)) {
    fail("{}: a random dropout of merges is not supported", dropout.path);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = node.at(key).text_or("");
    if (!affix.empty()) refuse(node.at(key), affix);
  }
  bpe.ignore_merges = node.at("ignore_merges").boolean_or(false);
  bpe.byte_fallback = node.at("byte_fallback").boolean_or(false);
  bpe.fuse_unknown = node.at("fuse_unk").boolean_or(false);
  read_vocabulary(node.at("vocab"), bpe);
  read_merges(node.at("merges"), bpe);
  const Node unknown = node.at("unk_token");
  if (unknown.value->is_null()) return;
  bpe.unknown = bpe.vocabulary.find(unknown.text());
  if (bpe.unknown < 0) {
    fail("{}: {} is not in the vocabulary", unknown.path, in_quotes(unknown.text()));
  }
}

void read_added_tokens(const Node& node, std::vector<AddedToken>& added) {
  if (node.value->is_null()) return;
  for (size_t i = 0; i < node.size(); ++i) {
    const Node entry = node.at(i);
    AddedToken token;
    token.id = entry.at("id").id();
    token.content = entry.at("content").text();
    token.special = entry.at("special").boolean_or(false);
    token.single_word = entry.at("single_word").boolean_or(false);
    token.lstrip = entry.at("lstrip").boolean_or(false);
    token.rstrip = entry.at("rstrip").boolean_or(false);
    token.normalized = entry.at("normalized").boolean_or(!token.special);
    added.push_back(std::move(token));
  }
}

// The special token that a TemplateProcessing puts before a text.
std::optional<int32_t> read_template_bos(const Node& node) {
  std::optional<int32_t> bos;
  for_each_step(node, "processors", [&](const Node& each) {
    if (each.at("type").text() != "TemplateProcessing") return;
    const Node single = each.at("single");
    if (single.size() == 0 || !single.at(size_t{0}).has("SpecialToken")) return;
    const std::string& token = single.at(size_t{0}).at("SpecialToken").at("id").text();
    const Node ids = each.at("special_tokens").at(token.c_str()).at("ids");
    if (ids.size() == 0) fail("{}: expected an id", ids.path);
    bos = ids.at(size_t{0}).id();
  });
  return bos;
}

// A token named in a configuration, as its text or as an object with the text in it.
std::optional<int32_t> read_named_token(const TokenizerSpec& spec, const Node& node) {
  if (node.value->is_null()) return std::nullopt;
  const std::string& text = node.value->is_object() ? node.at("content").text() : node.text();
  for (const AddedToken& token : spec.added) {
    if (token.content == text) return token.id;
  }
  const int32_t id = spec.bpe.vocabulary.find(text);
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace

TokenizerSpec read_tokenizer_json(std::string_view text, const std::string& name) {
  const json document = parse(text, name);
  const Node root{&document, name + ":"};
  TokenizerSpec spec;
  spec.name = name;
  if (!root.has("model")) fail("{}: model is missing", name);
  for_each_step(root.at("normalizer"), "normalizers",
                [&](const Node& node) { spec.normalizer.push_back(read_normalizer_step(node)); });
  read_pretokenizer(root.at("pre_tokenizer"), spec);
  read_model(root.at("model"), spec.bpe);
  read_added_tokens(root.at("added_tokens"), spec.added);
  spec.decoder = read_decoder(root.at("decoder"), spec);
  spec.added_bos = read_template_bos(root.at("post_processor"));
  spec.bos = spec.added_bos;
  return spec;
}

void apply_tokenizer_config(TokenizerSpec& spec, std::string_view text, const std::string& name) {
  const json document = parse(text, name);
  const Node root{&document, name + ":"};
  if (const auto bos = read_named_token(spec, root.at("bos_token"))) spec.bos = bos;
  if (const auto eos = read_named_token(spec, root.at("eos_token"))) spec.eos = eos;
  if (!root.has("add_bos_token")) return;
  if (root.at("add_bos_token").boolean_or(false)) {
    if (!spec.bos) fail("{}: add_bos_token is true, but the tokenizer has no bos_token", name);
    spec.added_bos = spec.bos;
  } else {
    spec.added_bos.reset();
  }
}

}  // namespace halflin
