#include "halflin/io/bpe.h"

#include <algorithm>
#include <limits>

#include "halflin/base/error.h"
#include "halflin/io/pretokenizer.h"
#include "halflin/io/printable.h"
#include "halflin/io/utf8.h"

namespace halflin {
namespace {

// Ids may leave holes, but not so many that the table of tokens is mostly air.
constexpr int64_t kIdsPerToken = 16;
constexpr int64_t kIdSlack = 65536;
constexpr size_t kMostCachedPieces = 65536;
// Up to here a plain scan for the best pair beats a heap.
constexpr size_t kLongestScan = 48;
constexpr uint64_t kNoMerge = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kNoSymbol = std::numeric_limits<uint32_t>::max();

// GPT-2's bytes_to_unicode: printable Latin-1 stands for itself, the other bytes for U+0100
// onwards.
std::array<uint32_t, 256> make_byte_chars() {
  std::array<uint32_t, 256> chars{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    chars[byte] = printable ? byte : next++;
  }
  return chars;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// rank << 32 | merged id, or kNoMerge.
uint64_t pair_value(const Bpe& bpe, int32_t left, int32_t right) {
  const uint64_t* value = bpe.merges.find(pair_key(left, right));
  return value == nullptr ? kNoMerge : *value;
}

int32_t merged_id(uint64_t value) { return static_cast<int32_t>(value & 0xffffffffu); }

void merge_by_scanning(const Bpe& bpe, std::vector<int32_t>& symbols,
                       std::vector<uint64_t>& values) {
  values.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    values.push_back(pair_value(bpe, symbols[i], symbols[i + 1]));
  }
  while (!values.empty()) {
    const auto best = std::min_element(values.begin(), values.end());
    if (*best == kNoMerge) break;
    const auto at = static_cast<size_t>(best - values.begin());
    symbols[at] = merged_id(*best);
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    values.erase(best);
    if (at > 0) values[at - 1] = pair_value(bpe, symbols[at - 1], symbols[at]);
    if (at < values.size()) values[at] = pair_value(bpe, symbols[at], symbols[at + 1]);
  }
}

// The same, with a heap over a linked list.
void merge_by_heap(const Bpe& bpe, BpeScratch& scratch) {
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<uint32_t>& previous = scratch.previous;
  std::vector<uint32_t>& next = scratch.next;
  const auto count = static_cast<uint32_t>(symbols.size());
  previous.resize(count);
  next.resize(count);
  using Candidate = BpeScratch::Candidate;
  std::vector<Candidate> candidates;
  const auto candidate = [&](uint32_t left, uint32_t right, Candidate& out) {
    const uint64_t value = pair_value(bpe, symbols[left], symbols[right]);
    if (value == kNoMerge) return false;
    out = {(value & ~uint64_t{0xffffffffu}) | left, merged_id(value)};
    return true;
  };
  Candidate found{};
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNoSymbol : i - 1;
    next[i] = i + 1 == count ? kNoSymbol : i + 1;
    if (i + 1 < count && candidate(i, i + 1, found)) candidates.push_back(found);
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(
      std::greater<>(), std::move(candidates));
  constexpr int32_t kGone = -1;
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    const auto at = static_cast<uint32_t>(best.order & 0xffffffffu);
    if (symbols[at] == kGone || next[at] == kNoSymbol) continue;
    const uint32_t eaten = next[at];
    // The pair may have changed since it was queued.
    const uint64_t value = pair_value(bpe, symbols[at], symbols[eaten]);
    if (value == kNoMerge || merged_id(value) != best.merged) continue;
    symbols[at] = best.merged;
    symbols[eaten] = kGone;
    next[at] = next[eaten];
    if (next[at] != kNoSymbol) {
      previous[next[at]] = at;
      if (candidate(at, next[at], found)) heap.push(found);
    }
    if (previous[at] != kNoSymbol && candidate(previous[at], at, found)) heap.push(found);
  }
  std::erase(symbols, kGone);
}

// Characters that the vocabulary lacks wait in `pending` until the next one that it has, so that a
// run of them can become one unknown token.
class SymbolReader {
 public:
  SymbolReader(const Bpe& bpe, std::vector<int32_t>& symbols) : bpe_(bpe), symbols_(symbols) {}
  ~SymbolReader() { flush(); }
  SymbolReader(const SymbolReader&) = delete;
  SymbolReader& operator=(const SymbolReader&) = delete;

  // One character, as the vocabulary spells it, and its id or -1.
  void add(std::string_view spelling, int32_t id) {
    if (id >= 0) {
      flush();
      symbols_.push_back(id);
      return;
    }
    if (bpe_.byte_fallback) {
      const auto fallback = [&](char c) {
        return bpe_.fallback_ids[static_cast<unsigned char>(c)];
      };
      if (std::all_of(spelling.begin(), spelling.end(), [&](char c) { return fallback(c) >= 0; })) {
        for (const char c : spelling) symbols_.push_back(fallback(c));
        return;
      }
    }
    if (bpe_.unknown < 0) return;
    if (pending_ && !bpe_.fuse_unknown) symbols_.push_back(bpe_.unknown);
    pending_ = true;
  }

 private:
  void flush() {
    if (pending_) symbols_.push_back(bpe_.unknown);
    pending_ = false;
  }

  const Bpe& bpe_;
  std::vector<int32_t>& symbols_;
  bool pending_ = false;
};

void read_symbols(const Bpe& bpe, std::string_view piece, std::vector<int32_t>& symbols) {
  symbols.clear();
  SymbolReader reader(bpe, symbols);
  if (bpe.byte_level) {
    for (const char c : piece) {
      const auto byte = static_cast<unsigned char>(c);
      reader.add(bpe.byte_chars[byte], bpe.byte_char_ids[byte]);
    }
    return;
  }
  for (size_t i = 0; i < piece.size();) {
    const std::string_view character = piece.substr(i, utf8_length(piece[i]));
    reader.add(character, bpe.vocabulary.find(character));
    i += character.size();
  }
}

void encode_whole(const Bpe& bpe, std::string_view piece, BpeScratch& scratch,
                  std::vector<int32_t>& ids) {
  if (bpe.ignore_merges) {
    std::string_view spelling = piece;
    if (bpe.byte_level) {
      scratch.spelling.clear();
      for (const char c : piece) scratch.spelling += bpe.byte_chars[static_cast<unsigned char>(c)];
      spelling = scratch.spelling;
    }
    const int32_t id = bpe.vocabulary.find(spelling);
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  read_symbols(bpe, piece, scratch.symbols);
  if (scratch.symbols.size() <= kLongestScan) {
    merge_by_scanning(bpe, scratch.symbols, scratch.pair_values);
  } else {
    merge_by_heap(bpe, scratch);
  }
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void encode_cached(const Bpe& bpe, std::string_view piece, BpeScratch& scratch,
                   std::vector<int32_t>& ids) {
  if (piece.size() > PieceCache::kLongestPiece) {
    encode_whole(bpe, piece, scratch, ids);
    return;
  }
  const size_t hash = std::hash<std::string_view>()(piece);
  if (const PieceCache::Entry* entry = scratch.cache.find(piece, hash)) {
    const int32_t* known = scratch.cache.ids(*entry);
    ids.insert(ids.end(), known, known + entry->ids_size);
    return;
  }
  const size_t before = ids.size();
  encode_whole(bpe, piece, scratch, ids);
  scratch.cache.insert(piece, hash, ids.data() + before, ids.size() - before);
}

}  // namespace

int32_t Vocabulary::find(std::string_view token) const {
  const auto it = ids.find(token);
  return it == ids.end() ? -1 : it->second;
}

Vocabulary make_vocabulary(std::vector<std::pair<std::string, int64_t>> tokens,
                           const std::string& where) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t most =
      std::min<int64_t>(count * kIdsPerToken + kIdSlack, std::numeric_limits<int32_t>::max());
  int64_t highest = -1;
  for (const auto& [token, id] : tokens) {
    if (id < 0 || id >= most) {
      fail("{}: token {} has id {}, but {} tokens should have ids below {}", where,
           in_quotes(token), id, count, most);
    }
    highest = std::max(highest, id);
  }
  Vocabulary vocabulary;
  vocabulary.tokens.resize(static_cast<size_t>(highest + 1));
  vocabulary.present.resize(static_cast<size_t>(highest + 1));
  vocabulary.ids.reserve(tokens.size());
  for (std::pair<std::string, int64_t>& entry : tokens) {
    const int64_t id = entry.second;
    const auto index = static_cast<size_t>(id);
    if (vocabulary.present[index]) {
      fail("{}: tokens {} and {} both have id {}", where, in_quotes(vocabulary.tokens[index]),
           in_quotes(entry.first), id);
    }
    vocabulary.tokens[index] = std::move(entry.first);
    vocabulary.present[index] = true;
    const std::string& stored = vocabulary.tokens[index];
    const auto [it, is_new] = vocabulary.ids.emplace(stored, static_cast<int32_t>(id));
    if (!is_new) {
      fail("{}: ids {} and {} are both token {}", where, it->second, id, in_quotes(stored));
    }
  }
  return vocabulary;
}

void add_merge(Bpe& bpe, std::string_view left, std::string_view right, uint32_t rank,
               const std::string& where) {
  const auto id_of = [&](std::string_view token) {
    const int32_t id = bpe.vocabulary.find(token);
    if (id < 0) fail("{}: token {} is not in the vocabulary", where, in_quotes(token));
    return id;
  };
  const int32_t left_id = id_of(left);
  const int32_t right_id = id_of(right);
  const int32_t merged = id_of(std::string(left).append(right));
  bpe.merges.set(pair_key(left_id, right_id),
                 static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(merged));
}

int byte_of_char(uint32_t character) {
  static const std::vector<int> bytes = [] {
    std::vector<int> table(0x200, -1);
    const std::array<uint32_t, 256> chars = make_byte_chars();
    for (size_t byte = 0; byte < 256; ++byte) table[chars[byte]] = static_cast<int>(byte);
    return table;
  }();
  return character < bytes.size() ? bytes[character] : -1;
}

void prepare_bpe(Bpe& bpe) {
  const std::array<uint32_t, 256> chars = make_byte_chars();
  for (size_t byte = 0; byte < 256; ++byte) {
    bpe.byte_chars[byte].clear();
    append_utf8(bpe.byte_chars[byte], chars[byte]);
    bpe.byte_char_ids[byte] = bpe.vocabulary.find(bpe.byte_chars[byte]);
    bpe.fallback_ids[byte] = bpe.vocabulary.find(fmt::format("<0x{:02X}>", byte));
  }
  // A sentencepiece vocabulary merges over a whole text, with U+2581 for a space. Where no token
  // has that character behind another one, no merge reaches over the boundary before it, and words
  // can be merged one by one and remembered.
  bpe.cuts_at_metaspace =
      !bpe.byte_level && !bpe.ignore_merges && bpe.vocabulary.find(kMetaspace) >= 0;
  for (const std::string& token : bpe.vocabulary.tokens) {
    const size_t first_other = [&] {
      size_t i = 0;
      while (std::string_view(token).substr(i).starts_with(kMetaspace)) i += kMetaspace.size();
      return i;
    }();
    if (token.find(kMetaspace, first_other) != std::string::npos) bpe.cuts_at_metaspace = false;
  }
}

size_t PieceCache::slot_of(std::string_view piece, size_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].key_size != 0 &&
         (slots_[i].hash != hash ||
          std::string_view(keys_).substr(slots_[i].key_begin, slots_[i].key_size) != piece)) {
    i = (i + 1) & mask;
  }
  return i;
}

const PieceCache::Entry* PieceCache::find(std::string_view piece, size_t hash) const {
  if (slots_.empty()) return nullptr;
  const Entry& entry = slots_[slot_of(piece, hash)];
  return entry.key_size == 0 ? nullptr : &entry;
}

void PieceCache::insert(std::string_view piece, size_t hash, const int32_t* ids, size_t count) {
  if (size_ == kMostCachedPieces) return;
  if (size_ * 2 >= slots_.size()) {
    std::vector<Entry> old(std::max<size_t>(64, slots_.size() * 2));
    old.swap(slots_);
    for (const Entry& entry : old) {
      if (entry.key_size == 0) continue;
      const auto key = std::string_view(keys_).substr(entry.key_begin, entry.key_size);
      slots_[slot_of(key, entry.hash)] = entry;
    }
  }
  slots_[slot_of(piece, hash)] = {hash, static_cast<uint32_t>(keys_.size()),
                                  static_cast<uint32_t>(piece.size()),
                                  static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)};
  keys_.append(piece);
  ids_.insert(ids_.end(), ids, ids + count);
  ++size_;
}

void encode_piece(const Bpe& bpe, std::string_view piece, BpeScratch& scratch,
                  std::vector<int32_t>& ids) {
  if (!bpe.cuts_at_metaspace) {
    encode_cached(bpe, piece, scratch, ids);
    return;
  }
  size_t begin = 0;
  while (begin < piece.size()) {
    size_t end = begin;
    while (piece.substr(end).starts_with(kMetaspace)) end += kMetaspace.size();
    end = std::min(piece.find(kMetaspace, end), piece.size());
    encode_cached(bpe, piece.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

}  // namespace halflin
