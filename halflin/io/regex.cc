#include "halflin/io/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <new>
#include <utility>

#include "halflin/base/error.h"
#include "halflin/io/printable.h"
#include "halflin/io/utf8.h"

namespace halflin {
namespace {

// Oniguruma's \w, as the inside of a class: its table for Latin-1 adds superscripts and fractions.
constexpr std::string_view kWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}\x{bd}\x{be})";

// Oniguruma's POSIX brackets, as the inside of a class.
constexpr std::array<std::array<std::string_view, 2>, 7> kPosix = {{
    {"[:alpha:]", "\\p{Alphabetic}"},
    {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
    {"[:digit:]", "\\p{Nd}"},
    {"[:lower:]", "\\p{Lowercase}"},
    {"[:punct:]", "\\p{P}\\p{S}"},
    {"[:space:]", "\\p{White_Space}"},
    {"[:upper:]", "\\p{Uppercase}"},
}};

// Properties with long names that are no scripts.
constexpr std::array<std::string_view, 6> kProperties = {"Any",       "Alphabetic", "Emoji",
                                                         "Lowercase", "Uppercase",  "White_Space"};
// A match that needs more is taken for a runaway: about a tenth of a second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKiB = 256 * 1024;

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        inside_class(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '{') {
        interval();
      } else {
        if (c == '(') check_group();
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  bool next_is(std::string_view what) const { return in_.substr(at_).starts_with(what); }

  void escape() {
    if (at_ + 1 == in_.size()) fail("a lone \\ ends the pattern");
    const char c = in_[at_ + 1];
    at_ += 2;
    const std::string open = in_class_ ? "" : "[";
    const std::string close = in_class_ ? "" : "]";
    switch (c) {
      case 's':
        out_ += "\\p{White_Space}";
        return;
      case 'S':
        out_ += "\\P{White_Space}";
        return;
      case 'w':
        out_ += fmt::format("{}{}{}", open, kWord, close);
        return;
      case 'h':
        out_ += open + "0-9a-fA-F" + close;
        return;
      case 'W':
      case 'H':
        if (in_class_) fail("\\{} inside a class is not supported", c);
        out_ += fmt::format("[^{}]", c == 'W' ? kWord : "0-9a-fA-F");
        return;
      case 'b':
      case 'B':
        if (in_class_) break;
        out_ += c == 'b' ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord)
                         : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord);
        return;
      case 'u':
        if (in_.size() - at_ < 4) fail("\\u needs four hexadecimal digits");
        out_ += fmt::format("\\x{{{}}}", in_.substr(at_, 4));
        at_ += 4;
        return;
      case 'K':
        fail("\\K is not supported");
      default:
        break;
    }
    out_ += '\\';
    out_ += c;
    // What stands in these braces is copied whole: it is no interval.
    if ((c == 'p' || c == 'P' || c == 'x') && next_is("{")) braces(c != 'x');
  }

  void braces(bool property) {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) fail("an unclosed {{");
    std::string_view name = in_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    out_ += '{';
    if (property && name.starts_with('^')) {
      out_ += '^';
      name.remove_prefix(1);
    }
    // PCRE2 takes the bare name of a script for its extensions too.
    if (property && name.size() > 2 &&
        std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end()) {
      out_ += "sc:";
    }
    out_.append(name) += '}';
  }

  void open_class() {
    in_class_ = true;
    out_ += in_[at_++];
    if (next_is("^")) out_ += in_[at_++];
    if (next_is("]")) {  // literal when it comes first
      out_ += "\\]";
      ++at_;
    }
  }

  void inside_class(char c) {
    if (next_is("[:")) {
      for (const auto& [name, inside] : kPosix) {
        if (!next_is(name)) continue;
        out_ += inside;
        at_ += name.size();
        return;
      }
      fail("a bracket {} is not supported", in_.substr(at_, in_.find(']', at_) - at_));
    }
    if (c == '[') fail("a class inside a class is not supported");
    if (next_is("&&")) fail("&& in a class is not supported");
    if (c == ']') in_class_ = false;
    out_ += c;
    ++at_;
  }

  // {n,m}+ is one interval repeated to Oniguruma, and possessive to PCRE2.
  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() &&
           (std::isdigit(static_cast<unsigned char>(in_[end])) != 0 || in_[end] == ','))
      ++end;
    if (end + 1 < in_.size() && in_[end] == '}' && in_[end + 1] == '+') {
      fail("{}+ is not supported", in_.substr(at_, end + 1 - at_));
    }
    out_ += in_[at_++];
  }

  void check_group() {
    if (next_is("(*")) fail("(* is not supported");
    if (!next_is("(?")) return;
    for (size_t i = at_ + 2; i < in_.size(); ++i) {
      if (in_[i] == 'm' || in_[i] == 's' || in_[i] == 'C' || in_[i] == 'R') {
        fail("(?{}) is not supported", in_[i]);
      }
      if (in_[i] != 'i' && in_[i] != 'x' && in_[i] != '-') break;
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

Regex::Regex(std::string_view oniguruma_pattern, std::string where)
    : source_(oniguruma_pattern), where_(std::move(where)) {
  std::string pattern;
  try {
    pattern = translate_oniguruma(oniguruma_pattern);
  } catch (const Error& e) {
    fail("{}: pattern {}: {}", where_, in_quotes(oniguruma_pattern), e.what());
  }
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Multi-line, because ^ and $ always are in Oniguruma's Ruby syntax.
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK,
      &error, &offset, context.get());
  if (code == nullptr) {
    fail("{}: pattern {} does not compile: {}", where_, in_quotes(oniguruma_pattern),
         pcre2_message(error));
  }
  code_.reset(code, pcre2_code_free);
  // Where no executable memory is to be had, PCRE2 interprets instead.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

RegexScan::RegexScan(const Regex& regex, std::string_view text)
    : regex_(regex),
      text_(text),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  if (data_ == nullptr || context_ == nullptr) {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(context_, kMatchLimit);
  pcre2_set_heap_limit(context_, kHeapLimitKiB);
}

RegexScan::~RegexScan() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
}

bool RegexScan::next(size_t& begin, size_t& end) {
  while (from_ <= text_.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(regex_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()),
                         text_.size(), from_, options | PCRE2_NO_UTF_CHECK, data_, context_);
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      fail("{}: the pattern fails at byte {} of the text: {}", regex_.where_, from_,
           pcre2_message(result));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_);
    begin = bounds[0];
    end = bounds[1];
    if (begin > end) fail("{}: the pattern matches backwards", regex_.where_);
    if (begin == end && end == last_match_end_) {
      from_ = end < text_.size() ? end + utf8_length(text_[end]) : end + 1;
      continue;
    }
    from_ = end;
    last_match_end_ = end;
    return true;
  }
  return false;
}

}  // namespace halflin
