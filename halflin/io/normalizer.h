// What a tokenizer does to its text before splitting it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halflin/io/regex.h"
#include "halflin/io/utf8.h"

namespace halflin {

struct NormalizerStep {
  enum class Kind : uint8_t { kUnicode, kPrepend, kReplace };
  Kind kind = Kind::kUnicode;
  NormalForm form = NormalForm::kNFC;
  std::string from;  // kReplace: each occurrence, unless `pattern` is set
  std::optional<Regex> pattern;
  std::string to;  // kReplace: what takes its place; kPrepend: what comes first
};

// Applies the steps in order. An empty text gets nothing prepended. Throws Error when a step makes
// the text unreasonably long: only a malicious file does.
std::string normalize(std::span<const NormalizerStep> steps, std::string_view text);

}  // namespace halflin
