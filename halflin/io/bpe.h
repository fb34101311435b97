// Byte-pair merging: from a piece of text to token ids.
#pragma once

#include <array>
#include <cstdint>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "halflin/io/flat_map.h"

namespace halflin {

// Token strings and their ids. Byte-level vocabularies spell each byte as one printable character.
struct Vocabulary {
  // By id. Ids that no token has hold an empty string and are false in `present`.
  std::vector<std::string> tokens;
  std::vector<bool> present;
  std::unordered_map<std::string_view, int32_t> ids;  // keys view into `tokens`

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // moving a vector leaves its strings where they are
  Vocabulary& operator=(Vocabulary&&) = default;

  // -1 where there is none.
  int32_t find(std::string_view token) const;
};

// Builds a vocabulary. Throws Error, starting with `where`, on a negative or repeated id, a
// repeated token, or an id far above the number of tokens.
Vocabulary make_vocabulary(std::vector<std::pair<std::string, int64_t>> tokens,
                           const std::string& where);

struct Bpe {
  Vocabulary vocabulary;
  FlatMap merges;  // (left id << 32 | right id) -> (rank << 32 | merged id); low ranks come first
  bool byte_level = false;
  bool ignore_merges = false;  // a piece that is a token as it stands is not built up from parts
  bool byte_fallback = false;  // characters without a token become their bytes' tokens <0x..>
  bool fuse_unknown = false;
  int32_t unknown = -1;  // without it, characters without a token are dropped

  // Derived by prepare_bpe.
  std::array<std::string, 256> byte_chars;  // byte_level: how each byte is spelt
  std::array<int32_t, 256> byte_char_ids;   // byte_level: the id of that spelling
  std::array<int32_t, 256> fallback_ids;    // the ids of <0x00> ... <0xFF>
  bool cuts_at_metaspace = false;           // no merge reaches from another character to U+2581
};

// Adds the merge of `left` and `right`; a later one for the same pair replaces an earlier one.
// Throws Error, starting with `where`, if a token is not in the vocabulary.
void add_merge(Bpe& bpe, std::string_view left, std::string_view right, uint32_t rank,
               const std::string& where);

// Fills the derived members once vocabulary, merges and options are set.
void prepare_bpe(Bpe& bpe);

// The byte that `text`, one character of a byte-level vocabulary, spells; -1 for other characters.
int byte_of_char(uint32_t character);

// Ids of pieces that were met before. It grows with the text and stops at a bound.
class PieceCache {
 public:
  static constexpr size_t kLongestPiece = 64;

  struct Entry {
    size_t hash = 0;
    uint32_t key_begin = 0;
    uint32_t key_size = 0;  // 0 marks a free slot: no piece is empty
    uint32_t ids_begin = 0;
    uint32_t ids_size = 0;
  };

  // Null where the piece is new.
  const Entry* find(std::string_view piece, size_t hash) const;
  void insert(std::string_view piece, size_t hash, const int32_t* ids, size_t count);
  const int32_t* ids(const Entry& entry) const { return ids_.data() + entry.ids_begin; }

 private:
  size_t slot_of(std::string_view piece, size_t hash) const;

  std::vector<Entry> slots_;
  size_t size_ = 0;
  std::string keys_;
  std::vector<int32_t> ids_;
};

// Working memory of one encoding.
struct BpeScratch {
  struct Candidate {
    uint64_t order;  // rank << 32 | position: the lowest comes first
    int32_t merged;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  PieceCache cache;
  std::vector<int32_t> symbols;
  std::vector<uint64_t> pair_values;
  std::vector<uint32_t> previous;
  std::vector<uint32_t> next;
  std::string spelling;
};

// Appends the ids of one piece (valid UTF-8, below 2 GiB). Never quadratic in its length.
void encode_piece(const Bpe& bpe, std::string_view piece, BpeScratch& scratch,
                  std::vector<int32_t>& ids);

}  // namespace halflin
