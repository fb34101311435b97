// Cuts a text into the pieces that byte-pair merges never cross.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/io/regex.h"

namespace halflin {

// What becomes of a delimiter that was found.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

// U+2581, which stands for a space in sentencepiece vocabularies.
inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";

// GPT-2's pattern; ByteLevel's own.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct PreTokenizerStep {
  enum class Kind : uint8_t { kPattern, kDigits, kMetaspace };
  enum class Prepend : uint8_t { kNever, kFirst, kAlways };

  Kind kind = Kind::kPattern;
  // kPattern. With neither `pattern` nor `literal` nothing is split.
  std::optional<Regex> pattern;
  std::string literal;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;            // the matches are the pieces, what lies between delimits
  bool add_prefix_space = false;  // ByteLevel: a piece that does not start with a space gets one
  // kDigits: each numeric character alone, or runs of them.
  bool individual_digits = false;
  // kMetaspace: a space becomes `replacement`; `split` cuts in front of each.
  std::string replacement = std::string(kMetaspace);
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

struct Piece {
  std::string_view text;
  bool at_start;  // of the whole text: where Prepend::kFirst applies
};

// Pieces and the strings behind those that are not cut from the text itself.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> owned;
};

// Replaces `pieces` by those of `text` (valid UTF-8, outlives them). No piece is empty.
void pretokenize(std::span<const PreTokenizerStep> steps, std::string_view text, bool at_start,
                 Pieces& pieces);

}  // namespace halflin
