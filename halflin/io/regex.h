// Regular expressions of tokenizer files: written for Oniguruma, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace halflin {

// The same expression in PCRE2's syntax. The two differ in \s (PCRE2 takes U+180E for a space), \w
// and \b, \h (a hexadecimal digit in Oniguruma), \u, POSIX brackets and script names. Throws Error
// on what has no equal here: nested or intersected classes, `{n,m}+`, (?m), `(*`. One difference
// stays: the version of Unicode. Letters and digits that are newer than PCRE2's tables (Unicode 14
// in PCRE2 10.42) are neither.
std::string translate_oniguruma(std::string_view pattern);

// Compiled once, used by any number of threads.
class Regex {
 public:
  // `where` names file and key in messages. Throws Error if the pattern does not compile.
  Regex(std::string_view oniguruma_pattern, std::string where);
  // The pattern as it was given.
  const std::string& source() const { return source_; }

 private:
  friend class RegexScan;
  std::shared_ptr<pcre2_real_code_8> code_;
  std::string source_;
  std::string where_;
};

// Walks the matches in one text, left to right, without overlap. An empty match directly behind the
// match before it is skipped, as Hugging Face's does.
class RegexScan {
 public:
  // `text` is valid UTF-8 and outlives the scan.
  RegexScan(const Regex& regex, std::string_view text);
  ~RegexScan();
  RegexScan(const RegexScan&) = delete;
  RegexScan& operator=(const RegexScan&) = delete;

  // The next match, [begin, end); false at the end. Throws Error when matching takes too many
  // steps.
  bool next(size_t& begin, size_t& end);

 private:
  const Regex& regex_;
  std::string_view text_;
  size_t from_ = 0;
  size_t last_match_end_ = std::string_view::npos;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
};

}  // namespace halflin
