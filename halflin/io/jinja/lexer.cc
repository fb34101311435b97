#include <algorithm>
#include <array>

#include "halflin/io/jinja/syntax.h"
#include "halflin/io/printable.h"
#include "halflin/io/text.h"
#include "halflin/io/utf8.h"

namespace halflin::jinja {

namespace {

constexpr size_t kLongestTemplate = size_t{1} << 20;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return starts_name(c) || is_digit(c); }

class Lexer {
 public:
  Lexer(std::string source, const std::string& file) : source_(std::move(source)), file_(file) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text_and_tag();
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail_at(size_t at, fmt::format_string<Args...> format, Args&&... args) const {
    halflin::fail("{}: line {}: {}", file_, line_of(at),
                  fmt::format(format, std::forward<Args>(args)...));
  }

  size_t line_of(size_t at) const {
    const auto end = source_.begin() + static_cast<std::ptrdiff_t>(std::min(at, source_.size()));
    return 1 + static_cast<size_t>(std::count(source_.begin(), end, '\n'));
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void add(TokenKind kind, std::string text) {
    line_ +=
        static_cast<size_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                       source_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    counted_ = at_;
    tokens_.push_back({kind, std::move(text), line_});
  }

  void skip_space() {
    while (at_ < source_.size() && is_space(source_[at_])) ++at_;
  }

  // Text up to the next "{{", "{%" or "{#", and what that begins.
  void read_text_and_tag() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == source_.size()) {
        add_text(source_.substr(at_));
        at_ = source_.size();
        return;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = source_[tag + 1];
    std::string text = source_.substr(at_, tag - at_);
    at_ = tag + 2;
    strip_before(text, kind, /*line_starting=*/at_line_start_);
    add_text(std::move(text));
    at_line_start_ = false;
    if (kind == '#') {
      read_comment(tag);
    } else if (kind == '%' && read_raw(tag)) {
      return;
    } else {
      read_tag(tag, kind == '{');
    }
  }

  void add_text(std::string text) {
    if (!text.empty()) add(TokenKind::kText, std::move(text));
  }

  // The sign behind an opening tag, or without one what lstrip_blocks does. Moves behind the sign.
  void strip_before(std::string& text, char kind, bool line_starting) {
    const char sign = at_ < source_.size() ? source_[at_] : '\0';
    if (sign == '-' || sign == '+') ++at_;
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.pop_back();
    } else if (sign != '+' && kind != '{') {
      const size_t feed = text.rfind('\n');
      const size_t begin = feed == std::string::npos ? 0 : feed + 1;
      if (feed == std::string::npos && !line_starting) return;
      if (std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_space)) {
        text.resize(begin);
      }
    }
  }

  // Whether the text goes on with a closing tag, and if so moves behind it and the white space that
  // goes with it. `plain`: "%}", "}}" or "#}".
  bool read_close(std::string_view plain) {
    const bool trims = plain != "}}";
    if (rest().starts_with('-') && rest().substr(1).starts_with(plain)) {
      at_ += 1 + plain.size();
      skip_space();
    } else if (trims && rest().starts_with('+') && rest().substr(1).starts_with(plain)) {
      at_ += 1 + plain.size();
    } else if (rest().starts_with(plain)) {
      at_ += plain.size();
      if (trims && rest().starts_with('\n')) ++at_;
    } else {
      return false;
    }
    at_line_start_ = source_[at_ - 1] == '\n';
    return true;
  }

  void read_comment(size_t begin) {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) fail_at(begin, "a comment that is not closed");
    const bool has_sign = close > at_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    at_ = has_sign ? close - 1 : close;
    read_close("#}");
  }

  // "raw %}" and the text up to {% endraw %}; nothing where another tag begins.
  bool read_raw(size_t begin) {
    const size_t before = at_;
    const auto word = [&](std::string_view name) {
      skip_space();
      if (!rest().starts_with(name)) return false;
      at_ += name.size();
      skip_space();
      return true;
    };
    if (!word("raw") || !(rest().starts_with("%}") || rest().starts_with("-%}"))) {
      at_ = before;
      return false;
    }
    const bool strip = rest().starts_with('-');
    at_ += strip ? 3 : 2;
    if (strip) skip_space();
    const size_t text_begin = at_;
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      at_ = tag + 2;
      if (rest().starts_with('-') || rest().starts_with('+')) ++at_;
      if (!word("endraw") || !read_close("%}")) continue;
      const size_t end = std::exchange(at_, tag + 2);
      std::string text = source_.substr(text_begin, tag - text_begin);
      strip_before(text, '%', /*line_starting=*/source_[text_begin - 1] == '\n');
      at_ = end;
      add_text(std::move(text));
      return true;
    }
    fail_at(begin, "a raw block that is not closed");
  }

  void read_tag(size_t begin, bool output) {
    add(output ? TokenKind::kOutputBegin : TokenKind::kTagBegin, {});
    std::string open;  // brackets not closed yet: inside them "}}" closes two of them
    for (;;) {
      if (open.empty() && read_close(output ? "}}" : "%}")) break;
      if (at_ == source_.size()) fail_at(begin, "a tag that is not closed");
      const char c = source_[at_];
      if (is_space(c)) {
        ++at_;
      } else if (starts_name(c)) {
        const size_t from = at_;
        while (at_ < source_.size() && continues_name(source_[at_])) ++at_;
        add(TokenKind::kName, source_.substr(from, at_ - from));
      } else if (is_digit(c)) {
        read_number();
      } else if (c == '\'' || c == '"') {
        read_string();
      } else {
        read_operator(open);
      }
    }
    add(output ? TokenKind::kOutputEnd : TokenKind::kTagEnd, {});
  }

  void read_digits() {
    while (at_ < source_.size() &&
           (is_digit(source_[at_]) ||
            (source_[at_] == '_' && at_ + 1 < source_.size() && is_digit(source_[at_ + 1])))) {
      ++at_;
    }
  }

  void read_number() {
    const size_t from = at_;
    const bool behind_dot = from > 0 && source_[from - 1] == '.';  // value.0.name
    read_digits();
    bool is_float = false;
    if (!behind_dot) {
      if (rest().size() > 1 && rest()[0] == '.' && is_digit(rest()[1])) {
        is_float = true;
        ++at_;
        read_digits();
      }
      const size_t exponent = rest().size() > 1 && (rest()[1] == '+' || rest()[1] == '-') ? 2 : 1;
      if (rest().size() > exponent && (rest()[0] == 'e' || rest()[0] == 'E') &&
          is_digit(rest()[exponent])) {
        is_float = true;
        at_ += exponent;
        read_digits();
      }
    }
    std::string digits = source_.substr(from, at_ - from);
    std::erase(digits, '_');
    if (!is_float && digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos) {
      fail_at(from, "an integer that begins with 0");
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
  }

  void read_string() {
    const size_t from = at_;
    const char quote = source_[at_++];
    std::string value;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\' && at_ + 1 < source_.size()) {
        read_escape(value);
      } else {
        value += source_[at_++];
      }
    }
    if (at_ == source_.size()) fail_at(from, "a string that is not closed");
    ++at_;
    add(TokenKind::kString, std::move(value));
  }

  // Python's escapes, but for names of characters and octal numbers.
  void read_escape(std::string& value) {
    const char c = source_[at_ + 1];
    constexpr std::string_view kLetters = "nrtabfv\\'\"";
    constexpr std::string_view kValues = "\n\r\t\a\b\f\v\\'\"";
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      value += kValues[i];
      at_ += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t character = 0;
      for (size_t i = 0; i < digits; ++i) {
        const char d = at_ + 2 + i < source_.size() ? source_[at_ + 2 + i] : '\0';
        const uint32_t nibble = d >= '0' && d <= '9'   ? static_cast<uint32_t>(d - '0')
                                : d >= 'a' && d <= 'f' ? static_cast<uint32_t>(d - 'a' + 10)
                                : d >= 'A' && d <= 'F' ? static_cast<uint32_t>(d - 'A' + 10)
                                                       : 16;
        if (nibble == 16 || character > 0x1000000) fail_at(at_, "a string: a broken escape");
        character = character * 16 + nibble;
      }
      if (character > 0x10ffff || (character >= 0xd800 && character < 0xe000)) {
        fail_at(at_, "a string: U+{:04X} is no character", character);
      }
      append_utf8(value, character);
      at_ += 2 + digits;
    } else if (c == '\n') {
      at_ += 2;
    } else if (c == 'N' || is_digit(c)) {
      fail_at(at_, "a string: the escape '\\{}' is not supported", c);
    } else {  // Python leaves the others as they are
      value += '\\';
      ++at_;
    }
  }

  void read_operator(std::string& open) {
    static constexpr std::array<std::string_view, 25> kOperators = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      if (op == "[" || op == "(" || op == "{") {
        open += op == "[" ? ']' : op == "(" ? ')' : '}';
      } else if (op == "]" || op == ")" || op == "}") {
        if (open.empty()) fail_at(at_, "'{}' closes nothing", op);
        if (open.back() != op[0]) fail_at(at_, "expected '{}', found '{}'", open.back(), op);
        open.pop_back();
      }
      at_ += op.size();
      add(TokenKind::kOperator, std::string(op));
      return;
    }
    const size_t length = utf8_length(source_[at_]);
    fail_at(at_, "expected an expression, found {}", in_quotes(source_.substr(at_, length)));
  }

  std::string source_;
  const std::string& file_;
  size_t at_ = 0;
  bool at_line_start_ = true;  // what was read last ended a line
  size_t line_ = 1;            // of counted_
  size_t counted_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& file) {
  if (source.size() > kLongestTemplate) {
    fail("{}: expected a template of at most {} bytes, found {}", file, kLongestTemplate,
         source.size());
  }
  if (const size_t bad = find_invalid_utf8(source); bad != std::string_view::npos) {
    fail("{}: expected UTF-8, found byte 0x{:02x} at offset {}", file,
         static_cast<unsigned>(static_cast<unsigned char>(source[bad])), bad);
  }
  std::string text = with_plain_newlines(std::string(source));
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(std::move(text), file).run();
}

}  // namespace halflin::jinja
