// Statements.
#include <utility>

#include "halflin/io/jinja/token_reader.h"
#include "halflin/io/printable.h"

namespace halflin::jinja {

namespace {

class StatementParser {
 public:
  explicit StatementParser(TokenReader& in) : in_(in) {}

  std::vector<Statement> run() {
    std::string end;
    return read_statements({}, end);
  }

 private:
  // Up to a tag that begins with one of `ends`, whose name is taken and put into `end`; up to the
  // end of the template where there are none.
  std::vector<Statement> read_statements(const std::vector<std::string>& ends, std::string& end) {
    const TokenReader::Level level(in_);
    std::vector<Statement> statements;
    for (;;) {
      const Token token = in_.take();
      switch (token.kind) {
        case TokenKind::kText:
          statements.push_back({StatementKind::kText, token.line, token.text, {}, {}, {}});
          break;
        case TokenKind::kOutputBegin: {
          Statement output{StatementKind::kOutput, token.line, {}, {}, {}, {}};
          output.expressions.push_back(read_tuple(in_));
          if (in_.peek().kind != TokenKind::kOutputEnd) {
            in_.fail_here("expected '}}}}', found {}", describe(in_.peek()));
          }
          in_.take();
          statements.push_back(std::move(output));
          break;
        }
        case TokenKind::kTagBegin: {
          end = in_.expect_name();
          if (std::find(ends.begin(), ends.end(), end) != ends.end()) return statements;
          read_tag(end, token.line, statements);
          break;
        }
        default:
          if (!ends.empty()) in_.fail_here("expected {{% {} %}}, found the end", ends.back());
          return statements;
      }
    }
  }

  void read_tag(const std::string& name, size_t line, std::vector<Statement>& statements) {
    std::string end;
    if (name == "if") {
      statements.push_back(read_if(line));
    } else if (name == "for") {
      statements.push_back(read_for(line));
    } else if (name == "set") {
      statements.push_back(read_set(line));
    } else if (name == "macro") {
      statements.push_back(read_macro(line));
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) in_.fail_here("'{}' outside of a loop", name);
      in_.expect_tag_end();
      statements.push_back({name == "break" ? StatementKind::kBreak : StatementKind::kContinue,
                            line,
                            {},
                            {},
                            {},
                            {}});
    } else if (name == "generation") {  // marks what the model wrote, for training
      in_.expect_tag_end();
      std::vector<Statement> body = read_statements({"endgeneration"}, end);
      in_.expect_tag_end();
      std::move(body.begin(), body.end(), std::back_inserter(statements));
    } else if (name.starts_with("end") || name.starts_with("el")) {
      in_.fail_here("'{}' closes nothing here", name);
    } else {
      in_.fail_here("the statement {} is not supported", in_quotes(name));
    }
  }

  Statement read_if(size_t line) {
    Statement statement{StatementKind::kIf, line, {}, {}, {}, {}};
    std::string end = "elif";
    while (end == "elif") {
      statement.expressions.push_back(read_tuple(in_));
      in_.expect_tag_end();
      statement.bodies.push_back(read_statements({"elif", "else", "endif"}, end));
    }
    if (end == "else") {
      in_.expect_tag_end();
      statement.bodies.push_back(read_statements({"endif"}, end));
    }
    in_.expect_tag_end();
    return statement;
  }

  std::vector<std::string> read_targets() {
    std::vector<std::string> names;
    const bool brackets = in_.take_operator("(");
    do {
      names.push_back(in_.expect_name());
    } while (in_.take_operator(","));
    if (brackets) in_.expect_operator(")");
    return names;
  }

  Statement read_for(size_t line) {
    Statement statement{StatementKind::kFor, line, {}, read_targets(), {}, {}};
    if (!in_.take_name("in")) in_.fail_here("expected 'in', found {}", describe(in_.peek()));
    statement.expressions.push_back(read_tuple(in_, /*conditional=*/false));
    if (in_.take_name("if")) statement.expressions.push_back(read_expression(in_));
    if (in_.is_name("recursive")) in_.fail_here("'recursive' loops are not supported");
    in_.expect_tag_end();
    std::string end;
    ++loops_;
    statement.bodies.push_back(read_statements({"else", "endfor"}, end));
    --loops_;
    if (end == "else") {
      in_.expect_tag_end();
      statement.bodies.push_back(read_statements({"endfor"}, end));
    }
    in_.expect_tag_end();
    return statement;
  }

  Statement read_set(size_t line) {
    Statement statement{StatementKind::kSet, line, {}, {in_.expect_name()}, {}, {}};
    if (in_.take_operator(".")) {
      statement.text = in_.expect_name();
    } else {
      while (in_.take_operator(",")) statement.names.push_back(in_.expect_name());
    }
    if (in_.take_operator("=")) {
      statement.expressions.push_back(read_tuple(in_));
      in_.expect_tag_end();
      return statement;
    }
    if (in_.is_operator("|")) in_.fail_here("a filter on a 'set' block is not supported");
    if (!statement.text.empty() || statement.names.size() != 1) {
      in_.fail_here("expected '=', found {}", describe(in_.peek()));
    }
    in_.expect_tag_end();
    statement.kind = StatementKind::kSetBlock;
    std::string end;
    statement.bodies.push_back(read_statements({"endset"}, end));
    in_.expect_tag_end();
    return statement;
  }

  Statement read_macro(size_t line) {
    Statement statement{StatementKind::kMacro, line, in_.expect_name(), {}, {}, {}};
    in_.expect_operator("(");
    while (!in_.is_operator(")")) {
      if (!statement.names.empty()) in_.expect_operator(",");
      statement.names.push_back(in_.expect_name());
      if (in_.take_operator("=")) {
        statement.expressions.push_back(read_expression(in_));
      } else if (!statement.expressions.empty()) {
        in_.fail_here("parameter '{}' needs a default, since one before it has",
                      statement.names.back());
      }
    }
    in_.take();
    in_.expect_tag_end();
    std::string end;
    const size_t loops = std::exchange(loops_, 0);
    statement.bodies.push_back(read_statements({"endmacro"}, end));
    loops_ = loops;
    in_.expect_tag_end();
    return statement;
  }

  TokenReader& in_;
  size_t loops_ = 0;  // around the place, inside the same macro
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kOutputEnd:
      return "'}}'";
    case TokenKind::kTagEnd:
      return "'%}'";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return in_quotes(token.text);
  }
}

std::vector<Statement> parse(std::string_view source, const std::string& file) {
  TokenReader in(tokenize(source, file), file);
  return StatementParser(in).run();
}

}  // namespace halflin::jinja
