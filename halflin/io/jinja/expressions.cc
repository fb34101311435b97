// Expressions, by precedence: a if b else c; or; and; not; comparisons; + -; ~; * / // %; signs and
// filters; the rest.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "halflin/io/jinja/token_reader.h"
#include "halflin/io/printable.h"

namespace halflin::jinja {

namespace {

using Kind = ExpressionKind;

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& in) : in_(in) {}

  Expression read_tuple(bool conditional) {
    Expression first = conditional ? read_expression() : read_or();
    if (!in_.is_operator(",")) return first;
    Expression tuple = make(Kind::kList);
    tuple.parts.push_back(std::move(first));
    while (in_.take_operator(",")) {
      const TokenKind next = in_.peek().kind;
      if (next == TokenKind::kTagEnd || next == TokenKind::kOutputEnd) break;
      tuple.parts.push_back(conditional ? read_expression() : read_or());
    }
    return finish(std::move(tuple));
  }

  Expression read_expression() {
    const TokenReader::Level level(in_);
    Expression value = read_or();
    while (in_.take_name("if")) {
      Expression conditional = make(Kind::kConditional);
      conditional.parts.push_back(std::move(value));
      conditional.parts.push_back(read_or());
      if (in_.take_name("else")) conditional.parts.push_back(read_expression());
      value = finish(std::move(conditional));
    }
    return value;
  }

 private:
  // Chains without brackets are as deep as they are long, and are walked through recursively.
  Expression finish(Expression expression) const {
    int depth = 0;
    for (const Expression& part : expression.parts) depth = std::max(depth, part.depth);
    expression.depth = depth + 1;
    if (expression.depth > kDeepestSyntax) {
      in_.fail_here("an expression more than {} operations deep", kDeepestSyntax);
    }
    return expression;
  }

  Expression make(Kind kind, std::string text = {}) const {
    Expression expression;
    expression.kind = kind;
    expression.line = in_.peek().line;
    expression.text = std::move(text);
    return expression;
  }

  Expression unary(Kind kind, Expression part) const {
    Expression expression = make(kind);
    expression.parts.push_back(std::move(part));
    return finish(std::move(expression));
  }

  Expression binary(Kind kind, std::string op, Expression left, Expression right) const {
    Expression expression = make(kind, std::move(op));
    expression.parts.push_back(std::move(left));
    expression.parts.push_back(std::move(right));
    return finish(std::move(expression));
  }

  Expression read_or() {
    Expression left = read_and();
    while (in_.take_name("or")) left = binary(Kind::kOr, {}, std::move(left), read_and());
    return left;
  }

  Expression read_and() {
    Expression left = read_not();
    while (in_.take_name("and")) left = binary(Kind::kAnd, {}, std::move(left), read_not());
    return left;
  }

  Expression read_not() {
    if (!in_.is_name("not")) return read_compare();
    const TokenReader::Level level(in_);
    in_.take();
    return unary(Kind::kNot, read_not());
  }

  // The operator of a comparison that comes next, taken; or nothing.
  std::string take_comparison() {
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (in_.take_operator(op)) return op;
    }
    if (in_.take_name("in")) return "in";
    if (in_.is_name("not") && in_.peek_next().kind == TokenKind::kName &&
        in_.peek_next().text == "in") {
      in_.take();
      in_.take();
      return "not in";
    }
    return {};
  }

  Expression read_compare() {
    Expression first = read_sum();
    std::string op = take_comparison();
    if (op.empty()) return first;
    Expression compare = make(Kind::kCompare);
    compare.parts.push_back(std::move(first));
    for (; !op.empty(); op = take_comparison()) {
      compare.operators.push_back(op);
      compare.parts.push_back(read_sum());
    }
    return finish(std::move(compare));
  }

  Expression read_sum() {
    Expression left = read_join();
    while (in_.is_operator("+") || in_.is_operator("-")) {
      const std::string op = in_.take().text;
      left = binary(Kind::kArithmetic, op, std::move(left), read_join());
    }
    return left;
  }

  Expression read_join() {
    Expression left = read_product();
    while (in_.take_operator("~")) left = binary(Kind::kJoin, {}, std::move(left), read_product());
    return left;
  }

  Expression read_product() {
    Expression left = read_unary(/*with_filters=*/true);
    while (in_.is_operator("*") || in_.is_operator("/") || in_.is_operator("//") ||
           in_.is_operator("%")) {
      const std::string op = in_.take().text;
      left = binary(Kind::kArithmetic, op, std::move(left), read_unary(true));
    }
    if (in_.is_operator("**")) in_.fail_here("the operator '**' is not supported");
    return left;
  }

  Expression read_unary(bool with_filters) {
    Expression value;
    if (in_.is_operator("-") || in_.is_operator("+")) {
      const TokenReader::Level level(in_);
      const Kind kind = in_.take().text == "-" ? Kind::kNegative : Kind::kPositive;
      value = unary(kind, read_unary(false));
    } else {
      value = read_primary();
    }
    value = read_postfix(std::move(value));
    return with_filters ? read_filters(std::move(value)) : std::move(value);
  }

  Expression read_primary() {
    const Token token = in_.peek();
    Expression value = make(Kind::kLiteral);
    switch (token.kind) {
      case TokenKind::kName:
        in_.take();
        if (token.text == "true" || token.text == "True") {
          value.literal = true;
        } else if (token.text == "false" || token.text == "False") {
          value.literal = false;
        } else if (token.text == "none" || token.text == "None") {
          value.literal = None{};
        } else {
          value.kind = Kind::kName;
          value.text = token.text;
        }
        return finish(std::move(value));
      case TokenKind::kString: {
        std::string text;
        while (in_.peek().kind == TokenKind::kString) text += in_.take().text;
        value.literal = std::move(text);
        return finish(std::move(value));
      }
      case TokenKind::kInteger: {
        int64_t integer = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, integer).ec != std::errc()) {
          in_.fail_here("the integer {} is too large", in_quotes(token.text));
        }
        in_.take();
        value.literal = integer;
        return finish(std::move(value));
      }
      case TokenKind::kFloat:
        in_.take();
        value.literal = std::strtod(token.text.c_str(), nullptr);
        return finish(std::move(value));
      default:
        break;
    }
    if (in_.is_operator("(")) return read_brackets();
    if (in_.is_operator("[")) return read_list();
    if (in_.is_operator("{")) return read_dict();
    in_.fail_here("expected an expression, found {}", describe(token));
  }

  // An expression in brackets, or a tuple.
  Expression read_brackets() {
    const TokenReader::Level level(in_);
    in_.take();
    Expression tuple = make(Kind::kList);
    bool comma = false;
    while (!in_.is_operator(")")) {
      tuple.parts.push_back(read_expression());
      if (!in_.take_operator(",")) break;
      comma = true;
    }
    in_.expect_operator(")");
    if (tuple.parts.size() == 1 && !comma) {
      Expression only = std::move(tuple.parts[0]);
      return only;
    }
    return finish(std::move(tuple));
  }

  Expression read_list() {
    const TokenReader::Level level(in_);
    in_.take();
    Expression list = make(Kind::kList);
    while (!in_.is_operator("]")) {
      list.parts.push_back(read_expression());
      if (!in_.take_operator(",")) break;
    }
    in_.expect_operator("]");
    return finish(std::move(list));
  }

  Expression read_dict() {
    const TokenReader::Level level(in_);
    in_.take();
    Expression dict = make(Kind::kDict);
    while (!in_.is_operator("}")) {
      dict.parts.push_back(read_expression());
      in_.expect_operator(":");
      dict.parts.push_back(read_expression());
      if (!in_.take_operator(",")) break;
    }
    in_.expect_operator("}");
    return finish(std::move(dict));
  }

  Expression read_postfix(Expression value) {
    for (;;) {
      if (in_.take_operator(".")) {
        const Token name = in_.peek();
        if (name.kind != TokenKind::kName && name.kind != TokenKind::kInteger) {
          in_.fail_here("expected a name behind '.', found {}", describe(name));
        }
        if (name.kind == TokenKind::kInteger) {
          value = binary(Kind::kItem, {}, std::move(value), read_primary());
        } else {
          in_.take();
          value = unary(Kind::kAttribute, std::move(value));
          value.text = name.text;
        }
      } else if (in_.is_operator("[")) {
        value = read_subscript(std::move(value));
      } else if (in_.is_operator("(")) {
        Expression call = make(Kind::kCall);
        call.parts.push_back(std::move(value));
        read_arguments(call);
        value = finish(std::move(call));
      } else {
        return value;
      }
    }
  }

  Expression read_subscript(Expression value) {
    const TokenReader::Level level(in_);
    in_.take();
    Expression item = make(Kind::kItem);
    item.parts.push_back(std::move(value));
    for (int field = 0; field < 3; ++field) {
      const bool left_out = in_.is_operator(":") || in_.is_operator("]");
      Expression none = make(Kind::kLiteral);
      none.literal = None{};
      item.parts.push_back(left_out ? finish(std::move(none)) : read_expression());
      if (field == 0 && left_out && in_.is_operator("]")) {
        in_.fail_here("expected an index, found ']'");
      }
      if (!in_.take_operator(":")) break;
      item.kind = Kind::kSlice;
      if (in_.is_operator("]")) break;
    }
    in_.expect_operator("]");
    return finish(std::move(item));
  }

  void read_arguments(Expression& call) {
    const TokenReader::Level level(in_);
    in_.take();
    while (!in_.is_operator(")")) {
      if (in_.is_operator("*") || in_.is_operator("**")) {
        in_.fail_here("'{}' before an argument is not supported", in_.peek().text);
      }
      const bool named = in_.peek().kind == TokenKind::kName &&
                         in_.peek_next().kind == TokenKind::kOperator &&
                         in_.peek_next().text == "=";
      if (named) {
        call.names.push_back(in_.take().text);
        in_.take();
        call.parts.push_back(read_expression());
      } else {
        if (!call.names.empty()) in_.fail_here("an argument without name behind named ones");
        call.parts.push_back(read_expression());
      }
      if (!in_.take_operator(",")) break;
    }
    in_.expect_operator(")");
  }

  Expression read_filters(Expression value) {
    for (;;) {
      if (in_.take_operator("|")) {
        value = unary(Kind::kFilter, std::move(value));
        value.text = in_.expect_name();
        if (in_.is_operator(".")) in_.fail_here("the filter '{}.' is not supported", value.text);
        if (in_.is_operator("(")) read_arguments(value);
        value = finish(std::move(value));
      } else if (in_.take_name("is")) {
        value = read_test(std::move(value));
      } else if (in_.is_operator("(")) {
        Expression call = make(Kind::kCall);
        call.parts.push_back(std::move(value));
        read_arguments(call);
        value = finish(std::move(call));
      } else {
        return value;
      }
    }
  }

  Expression read_test(Expression value) {
    const bool negated = in_.take_name("not");
    Expression test = unary(Kind::kTest, std::move(value));
    test.text = in_.expect_name();
    if (in_.is_operator("(")) {
      read_arguments(test);
    } else {
      const TokenKind next = in_.peek().kind;
      const bool word = next == TokenKind::kName && !in_.is_name("else") && !in_.is_name("or") &&
                        !in_.is_name("and") && !in_.is_name("is") && !in_.is_name("if") &&
                        !in_.is_name("in") && !in_.is_name("not");
      if (word || next == TokenKind::kString || next == TokenKind::kInteger ||
          next == TokenKind::kFloat || in_.is_operator("[") || in_.is_operator("{")) {
        test.parts.push_back(read_postfix(read_primary()));
      }
    }
    test = finish(std::move(test));
    return negated ? unary(Kind::kNot, std::move(test)) : std::move(test);
  }

  TokenReader& in_;
};

}  // namespace

Expression read_tuple(TokenReader& in, bool conditional) {
  return ExpressionParser(in).read_tuple(conditional);
}

Expression read_expression(TokenReader& in) { return ExpressionParser(in).read_expression(); }

}  // namespace halflin::jinja
