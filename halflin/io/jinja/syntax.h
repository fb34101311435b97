// A template as text, as tokens, and as a tree.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halflin/io/jinja/value.h"

namespace halflin::jinja {

enum class TokenKind : uint8_t {
  kText,  // outside of tags
  kOutputBegin,
  kOutputEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,  // its value
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // of the template
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  size_t line = 1;
};

// White space around tags goes as transformers has it: the line feed behind a tag and the blanks
// before one at the start of a line are dropped (trim_blocks and lstrip_blocks), "-" takes all
// white space, "+" none; comments are left out. Throws Error with the line.
std::vector<Token> tokenize(std::string_view source, const std::string& file);

enum class ExpressionKind : uint8_t {
  kLiteral,      // literal
  kName,         // text
  kList,         // parts (tuples, too)
  kDict,         // parts: key, value, key, value, ...
  kAttribute,    // parts[0].text
  kItem,         // parts[0][parts[1]]
  kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], none where left out
  kCall,         // parts[0](parts[1], ...)
  kFilter,       // parts[0] | text(parts[1], ...)
  kTest,         // parts[0] is text(parts[1], ...)
  kNot,          // parts[0]
  kNegative,     // parts[0]
  kPositive,     // parts[0]
  kArithmetic,   // parts[0] text parts[1]
  kJoin,         // parts[0] ~ parts[1]
  kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  kAnd,          // parts[0], parts[1]
  kOr,           // parts[0], parts[1]
  kConditional,  // parts[0] if parts[1] else parts[2], which may be left out
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  size_t line = 1;
  int depth = 0;
  std::string text;
  Value literal;
  std::vector<Expression> parts;
  std::vector<std::string> names;  // of the last parts, where those are named arguments
  std::vector<std::string> operators;
};

enum class StatementKind : uint8_t {
  kText,      // text
  kOutput,    // expressions[0]
  kIf,        // expressions, one a branch; bodies, one a branch and one more for else
  kFor,       // names in expressions[0], if expressions[1]; bodies: loop, else
  kSet,       // names = expressions[0]; or names[0].text = expressions[0]
  kSetBlock,  // names[0] = what bodies[0] writes
  kMacro,     // text(names), the last names with defaults: expressions; bodies[0]
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  size_t line = 1;
  std::string text;
  std::vector<std::string> names;
  std::vector<Expression> expressions;
  std::vector<std::vector<Statement>> bodies;
};

// Throws Error with the line for what is no template, and for what is outside the subset, by name.
std::vector<Statement> parse(std::string_view source, const std::string& file);

}  // namespace halflin::jinja
