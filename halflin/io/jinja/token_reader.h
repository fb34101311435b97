// The tokens of a template, one after another; shared by the parsers of statements and expressions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halflin/io/jinja/syntax.h"

namespace halflin::jinja {

// Of expressions and blocks in one another.
inline constexpr int kDeepestSyntax = 100;

// How a message names a token.
std::string describe(const Token& token);

class TokenReader {
 public:
  TokenReader(std::vector<Token> tokens, const std::string& file)
      : tokens_(std::move(tokens)), file_(file) {}

  const Token& peek() const { return tokens_[at_]; }
  const Token& peek_next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> format, Args&&... args) const {
    halflin::fail("{}: line {}: {}", file_, peek().line,
                  fmt::format(format, std::forward<Args>(args)...));
  }

  bool is_operator(std::string_view op) const {
    return peek().kind == TokenKind::kOperator && peek().text == op;
  }
  bool is_name(std::string_view name) const {
    return peek().kind == TokenKind::kName && peek().text == name;
  }
  bool take_operator(std::string_view op) {
    if (!is_operator(op)) return false;
    take();
    return true;
  }
  bool take_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
  }
  void expect_operator(std::string_view op) {
    if (!take_operator(op)) fail_here("expected '{}', found {}", op, describe(peek()));
  }
  void expect_tag_end() {
    if (peek().kind != TokenKind::kTagEnd) fail_here("expected '%}}', found {}", describe(peek()));
    take();
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::kName) fail_here("expected a name, found {}", describe(peek()));
    return take().text;
  }

  // One level of nesting, for as long as it lives.
  struct Level {
    TokenReader& reader;
    explicit Level(TokenReader& r) : reader(r) {
      if (++reader.level_ > kDeepestSyntax) {
        reader.fail_here("expressions or blocks more than {} deep in one another", kDeepestSyntax);
      }
    }
    ~Level() { --reader.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
  };

 private:
  std::vector<Token> tokens_;
  const std::string& file_;
  size_t at_ = 0;
  int level_ = 0;
};

// Expressions with commas between are a tuple; `conditional`: "a if b else c" is one expression.
Expression read_tuple(TokenReader& in, bool conditional = true);
Expression read_expression(TokenReader& in);

}  // namespace halflin::jinja
