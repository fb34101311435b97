// Tokens that are found in the text before anything else: specials, and those a user added.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/io/flat_map.h"
#include "halflin/io/regex.h"

namespace halflin {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;  // not beside a letter, digit or underscore
  bool lstrip = false;       // eats white space in front of it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // found in the normalised text instead of the original
  std::string written;       // what decoding writes: `content`, normalised if `normalized`
};

// A set of strings to find, as a trie over bytes.
class TokenTrie {
 public:
  // `token` is any number; the first of equal strings wins. Empty strings are ignored.
  void add(std::string_view text, uint32_t token);
  bool empty() const { return nodes_ == 1; }

  struct Match {
    size_t begin;
    size_t end;
    uint32_t token;
  };
  // The leftmost match at or behind `from`, the longest of those that start there.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  FlatMap edges_;   // (node << 8 | byte) -> node
  FlatMap tokens_;  // node -> token
  uint64_t nodes_ = 1;
  std::vector<bool> first_bytes_ = std::vector<bool>(256);
};

// Part of a text: an added token, or text between two.
struct TextPart {
  std::string_view text;
  int32_t id;  // -1 for text
};

// Cuts `text` at the tokens that `trie` finds; the trie's numbers index `tokens`.
std::vector<TextPart> split_at_tokens(const TokenTrie& trie, std::span<const AddedToken> tokens,
                                      std::string_view text);

}  // namespace halflin
