#include "halflin/io/added_tokens.h"

#include <algorithm>

#include "halflin/io/utf8.h"

namespace halflin {
namespace {

// Whether the character that starts at `offset` belongs to a word: \w of Rust's regex crate.
bool is_word_char(std::string_view text, size_t offset) {
  static const Regex word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])", "added tokens");
  RegexScan scan(word, text.substr(offset, utf8_length(text[offset])));
  size_t begin = 0;
  size_t end = 0;
  return scan.next(begin, end);
}

size_t char_before(std::string_view text, size_t offset) {
  do {
    --offset;
  } while ((static_cast<unsigned char>(text[offset]) & 0xc0) == 0x80);
  return offset;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_char(text, char_before(text, begin))) &&
         (end == text.size() || !is_word_char(text, end));
}

size_t skip_space_left(std::string_view text, size_t at, size_t floor) {
  while (at > floor) {
    const size_t before = char_before(text, at);
    size_t offset = before;
    if (!is_white_space(next_char(text, offset))) break;
    at = before;
  }
  return at;
}

size_t skip_space_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t offset = at;
    if (!is_white_space(next_char(text, offset))) break;
    at = offset;
  }
  return at;
}

}  // namespace

void TokenTrie::add(std::string_view text, uint32_t token) {
  if (text.empty()) return;
  uint64_t node = 0;
  for (const char c : text) {
    const uint64_t edge = node << 8 | static_cast<unsigned char>(c);
    if (const uint64_t* next = edges_.find(edge)) {
      node = *next;
    } else {
      edges_.set(edge, nodes_);
      node = nodes_++;
    }
  }
  if (tokens_.find(node) == nullptr) tokens_.set(node, token);
  first_bytes_[static_cast<unsigned char>(text[0])] = true;
}

std::optional<TokenTrie::Match> TokenTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    uint64_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const uint64_t* next = edges_.find(node << 8 | static_cast<unsigned char>(text[i]));
      if (next == nullptr) break;
      node = *next;
      if (const uint64_t* token = tokens_.find(node)) {
        longest = {begin, i + 1, static_cast<uint32_t>(*token)};
      }
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

std::vector<TextPart> split_at_tokens(const TokenTrie& trie, std::span<const AddedToken> tokens,
                                      std::string_view text) {
  std::vector<TextPart> parts;
  size_t done = 0;
  size_t from = 0;
  while (!trie.empty()) {
    const std::optional<TokenTrie::Match> match = trie.find(text, from);
    if (!match) break;
    from = match->end;
    const AddedToken& token = tokens[match->token];
    if (token.single_word && !stands_alone(text, match->begin, match->end)) continue;
    size_t begin = match->begin;
    size_t end = match->end;
    // Space that the token before has eaten is not eaten twice.
    if (token.lstrip) begin = std::max(skip_space_left(text, begin, done), done);
    if (token.rstrip) end = skip_space_right(text, end);
    end = std::max(begin, end);
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace halflin
