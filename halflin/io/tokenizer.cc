#include "halflin/io/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/printable.h"
#include "halflin/io/tokenizer_spec.h"

namespace halflin {
namespace {

constexpr int32_t kMostAddedIdSlack = 65536;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte that a token <0x..> stands for, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  if (!from.empty()) {
    for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
      out.append(text.substr(done, at - done)).append(to);
      done = at + from.size();
    }
  }
  return out.append(text.substr(done));
}

std::string decode_byte_level(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const int byte = byte_of_char(next_char(token, i));
    if (byte < 0) return std::string(token);
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

// What a token writes. Added tokens of a byte-level vocabulary are text and not spelt in bytes.
std::string decode_token(const DecoderSpec& decoder, std::string_view token, bool added,
                         bool first) {
  switch (decoder.kind) {
    case DecoderSpec::Kind::kByteLevel:
      return added ? std::string(token) : decode_byte_level(token);
    case DecoderSpec::Kind::kMetaspace:
      return replace_all(token, decoder.metaspace, first && decoder.drop_first ? "" : " ");
    case DecoderSpec::Kind::kReplace:
      break;
  }
  std::string out(token);
  for (const auto& [from, to] : decoder.replacements) out = replace_all(out, from, to);
  if (decoder.byte_fallback) {
    const int byte = fallback_byte(out);
    if (byte >= 0) return std::string(1, static_cast<char>(byte));
  }
  return out;
}

std::string_view token_text(const TokenizerSpec& spec, int32_t id, bool& added) {
  const auto it = spec.added_by_id.find(id);
  added = it != spec.added_by_id.end();
  if (added) return spec.added[it->second].written;
  const Vocabulary& vocabulary = spec.bpe.vocabulary;
  if (id < 0 || static_cast<size_t>(id) >= vocabulary.tokens.size() ||
      !vocabulary.present[static_cast<size_t>(id)]) {
    fail("{}: no token has id {} (ids run from 0 to {})", spec.name, id,
         static_cast<int64_t>(spec.size) - 1);
  }
  return vocabulary.tokens[static_cast<size_t>(id)];
}

void check_added_token(const TokenizerSpec& spec, const AddedToken& token, size_t index) {
  const Vocabulary& vocabulary = spec.bpe.vocabulary;
  const auto most =
      static_cast<int64_t>(vocabulary.tokens.size() + spec.added.size()) + kMostAddedIdSlack;
  if (token.id < 0 || token.id >= most) {
    fail("{}: added_tokens[{}]: id {} of {} is far above the vocabulary's {} tokens", spec.name,
         index, token.id, in_quotes(token.content), vocabulary.tokens.size());
  }
  const int32_t known = vocabulary.find(token.content);
  if (known >= 0 && known != token.id) {
    fail("{}: added_tokens[{}]: {} has id {}, but {} in the vocabulary", spec.name, index,
         in_quotes(token.content), token.id, known);
  }
  const auto id = static_cast<size_t>(token.id);
  if (known < 0 && id < vocabulary.present.size() && vocabulary.present[id]) {
    fail("{}: added_tokens[{}]: {} has id {}, which is {} in the vocabulary", spec.name, index,
         in_quotes(token.content), token.id, in_quotes(vocabulary.tokens[id]));
  }
}

}  // namespace

void finish_tokenizer(TokenizerSpec& spec) {
  prepare_bpe(spec.bpe);
  spec.size = spec.bpe.vocabulary.tokens.size();
  for (size_t i = 0; i < spec.added.size(); ++i) {
    AddedToken& token = spec.added[i];
    check_added_token(spec, token, i);
    const auto [it, is_new] = spec.added_by_id.emplace(token.id, i);
    if (!is_new && spec.added[it->second].content != token.content) {
      fail("{}: added_tokens[{}]: {} and {} both have id {}", spec.name, i,
           in_quotes(token.content), in_quotes(spec.added[it->second].content), token.id);
    }
    spec.size = std::max(spec.size, static_cast<size_t>(token.id) + 1);
    token.written = token.normalized ? normalize(spec.normalizer, token.content) : token.content;
    TokenTrie& trie = token.normalized ? spec.normalized_trie : spec.raw_trie;
    trie.add(token.written, static_cast<uint32_t>(i));
  }
  const auto check_id = [&](const std::optional<int32_t>& id, const char* what) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= spec.size)) {
      fail("{}: the {} id {} is not below the {} ids of the vocabulary", spec.name, what, *id,
           spec.size);
    }
  };
  check_id(spec.bos, "BOS");
  check_id(spec.eos, "EOS");
  check_id(spec.added_bos, "added BOS");
}

struct Tokenizer::Impl {
  TokenizerSpec spec;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(std::string_view json_text, const std::string& name) {
  auto impl = std::make_unique<Impl>(Impl{read_tokenizer_json(json_text, name)});
  finish_tokenizer(impl->spec);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::from_directory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    fail("{}: there is no tokenizer.json in this directory", directory.string());
  }
  auto impl = std::make_unique<Impl>(Impl{read_tokenizer_json(read_file(path), path.string())});
  const std::filesystem::path config = directory / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    apply_tokenizer_config(impl->spec, read_file(config), config.string());
  }
  finish_tokenizer(impl->spec);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::from_gguf(const nlohmann::json& metadata, const std::string& name) {
  auto impl = std::make_unique<Impl>(Impl{read_tokenizer_gguf(metadata, name)});
  finish_tokenizer(impl->spec);
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const TokenizerSpec& spec = impl_->spec;
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    fail("text of {} bytes: at most 2 GiB can be tokenized at once", text.size());
  }
  const size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    fail("text is not UTF-8: byte {} is 0x{:02x}", invalid,
         static_cast<unsigned>(static_cast<unsigned char>(text[invalid])));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4);
  BpeScratch scratch;
  Pieces pieces;
  for (const TextPart& raw : split_at_tokens(spec.raw_trie, spec.added, text)) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    std::string normalized;
    std::string_view segment = raw.text;
    if (!spec.normalizer.empty()) segment = normalized = normalize(spec.normalizer, raw.text);
    for (const TextPart& part : split_at_tokens(spec.normalized_trie, spec.added, segment)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const bool at_start = raw.text.data() == text.data() && part.text.data() == segment.data();
      pretokenize(spec.pretokenizer, part.text, at_start, pieces);
      for (const Piece& piece : pieces.list) encode_piece(spec.bpe, piece.text, scratch, ids);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  const TokenizerSpec& spec = impl_->spec;
  std::string text;
  bool first = true;
  for (const int32_t id : ids) {
    bool added = false;
    const std::string_view token = token_text(spec, id, added);
    text += decode_token(spec.decoder, token, added, first);
    first = false;
  }
  if (!spec.decoder.strip.empty()) {
    for (size_t i = 0; i < spec.decoder.strip_start && text.starts_with(spec.decoder.strip); ++i) {
      text.erase(0, spec.decoder.strip.size());
    }
  }
  return text;
}

std::string Tokenizer::token_bytes(int32_t id) const {
  bool added = false;
  const std::string_view token = token_text(impl_->spec, id, added);
  return decode_token(impl_->spec.decoder, token, added, false);
}

size_t Tokenizer::size() const { return impl_->spec.size; }

std::string Tokenizer::description() const {
  const TokenizerSpec& spec = impl_->spec;
  return fmt::format("{} BPE, {} tokens, {} pre-tokeniser",
                     spec.bpe.byte_level ? "byte-level" : "sentencepiece-style", spec.size,
                     spec.pretokenizer_name);
}

std::optional<int32_t> Tokenizer::added_bos() const { return impl_->spec.added_bos; }
std::optional<int32_t> Tokenizer::bos() const { return impl_->spec.bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->spec.eos; }

bool Tokenizer::is_special(int32_t id) const {
  const auto it = impl_->spec.added_by_id.find(id);
  return it != impl_->spec.added_by_id.end() && impl_->spec.added[it->second].special;
}

}  // namespace halflin
