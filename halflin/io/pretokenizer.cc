#include "halflin/io/pretokenizer.h"

#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/io/utf8.h"

namespace halflin {
namespace {

struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

const std::string& literal_of(const PreTokenizerStep& step) {
  return step.kind == PreTokenizerStep::Kind::kMetaspace ? step.replacement : step.literal;
}

bool splits(const PreTokenizerStep& step) {
  switch (step.kind) {
    case PreTokenizerStep::Kind::kDigits:
      return true;
    case PreTokenizerStep::Kind::kMetaspace:
      return step.split;
    case PreTokenizerStep::Kind::kPattern:
      break;
  }
  return step.pattern.has_value() || !step.literal.empty();
}

// Calls found(begin, end) for each delimiter.
template <class Found>
void find_delimiters(const PreTokenizerStep& step, std::string_view text, const Found& found) {
  size_t begin = 0;
  size_t end = 0;
  if (step.kind == PreTokenizerStep::Kind::kDigits) {
    while (end < text.size()) {
      begin = end;
      if (is_numeric(next_char(text, end))) found(begin, end);
    }
  } else if (step.pattern) {
    RegexScan scan(*step.pattern, text);
    while (scan.next(begin, end)) found(begin, end);
  } else {
    const std::string& literal = literal_of(step);
    for (size_t at = text.find(literal); at != std::string_view::npos;
         at = text.find(literal, at + literal.size())) {
      found(at, at + literal.size());
    }
  }
}

// The whole text as delimiters and what lies between them, in order.
void find_spans(const PreTokenizerStep& step, std::string_view text, std::vector<Span>& spans) {
  spans.clear();
  size_t done = 0;
  find_delimiters(step, text, [&](size_t begin, size_t end) {
    if (done < begin) spans.push_back({done, begin, step.invert});
    spans.push_back({begin, end, !step.invert});
    done = end;
  });
  if (done < text.size()) spans.push_back({done, text.size(), step.invert});
}

SplitBehavior behavior_of(const PreTokenizerStep& step) {
  switch (step.kind) {
    case PreTokenizerStep::Kind::kDigits:
      return step.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    case PreTokenizerStep::Kind::kMetaspace:
      return SplitBehavior::kMergedWithNext;
    case PreTokenizerStep::Kind::kPattern:
      break;
  }
  return step.behavior;
}

// Merges delimiters with their neighbours, in place, as Hugging Face's NormalizedString::split
// does.
void apply_behavior(SplitBehavior behavior, std::vector<Span>& spans) {
  std::vector<Span> out;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      return;
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kContiguous:
      for (const Span& span : spans) {
        const bool merge = behavior == SplitBehavior::kContiguous ? span.is_match == previous
                                                                  : span.is_match && !previous;
        if (merge && !out.empty()) {
          out.back().end = span.end;
        } else {
          out.push_back(span);
        }
        previous = span.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(spans.begin(), spans.end());
      for (const Span& span : spans) {
        if (span.is_match && !previous && !out.empty()) {
          out.back().begin = span.begin;
        } else {
          out.push_back(span);
        }
        previous = span.is_match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  spans = std::move(out);
}

std::string to_metaspace(const PreTokenizerStep& step, const Piece& piece) {
  std::string out;
  for (const char c : piece.text) {
    if (c == ' ') {
      out += step.replacement;
    } else {
      out += c;
    }
  }
  const bool prepend = step.prepend == PreTokenizerStep::Prepend::kAlways ||
                       (step.prepend == PreTokenizerStep::Prepend::kFirst && piece.at_start);
  if (prepend && !out.starts_with(step.replacement)) out.insert(0, step.replacement);
  return out;
}

}  // namespace

void pretokenize(std::span<const PreTokenizerStep> steps, std::string_view text, bool at_start,
                 Pieces& pieces) {
  pieces.list.clear();
  pieces.owned.clear();
  if (text.empty()) return;
  pieces.list.push_back({text, at_start});
  std::vector<Piece> cut;
  std::vector<Span> spans;
  for (const PreTokenizerStep& step : steps) {
    cut.clear();
    for (Piece piece : pieces.list) {
      if (step.kind == PreTokenizerStep::Kind::kMetaspace) {
        piece.text = pieces.owned.emplace_back(to_metaspace(step, piece));
      } else if (step.add_prefix_space && !piece.text.starts_with(' ')) {
        piece.text = pieces.owned.emplace_back(fmt::format(" {}", piece.text));
      }
      if (!splits(step)) {
        cut.push_back(piece);
        continue;
      }
      find_spans(step, piece.text, spans);
      apply_behavior(behavior_of(step), spans);
      for (const Span& span : spans) {
        if (span.begin == span.end) continue;
        cut.push_back({piece.text.substr(span.begin, span.end - span.begin),
                       piece.at_start && span.begin == 0});
      }
    }
    pieces.list.swap(cut);
  }
}

}  // namespace halflin
