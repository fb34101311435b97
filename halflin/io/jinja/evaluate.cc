#include "halflin/io/jinja/evaluate.h"

#include <algorithm>
#include <utility>

#include "halflin/io/jinja/builtins.h"
#include "halflin/io/printable.h"

namespace halflin::jinja {

namespace {

using Kind = ExpressionKind;

// A template's rendering of a long conversation takes some thousands of units.
constexpr size_t kMostWork = 4'000'000;
// Of expressions, blocks and macro calls that are under way.
constexpr int kDeepestEvaluation = 400;

enum class Flow : uint8_t { kOn, kBreak, kContinue };

class Evaluator {
 public:
  Evaluator(const std::string& file, const std::map<std::string, Value>& values, std::time_t now)
      : file_(file), globals_(values), now_(now) {
    globals_.emplace("range", Builtin::kRange);
    globals_.emplace("namespace", Builtin::kNamespace);
    globals_.emplace("dict", Builtin::kDict);
    globals_.emplace("raise_exception", Builtin::kRaiseException);
    globals_.emplace("strftime_now", Builtin::kStrftimeNow);
    scopes_.emplace_back();
  }

  std::string run(const std::vector<Statement>& statements) {
    std::string out;
    execute(statements, out);
    return out;
  }

 private:
  using Scope = std::map<std::string, Value>;

  Place place(size_t line) { return {file_, line, work_}; }

  struct Level {
    Evaluator& evaluator;
    Level(Evaluator& e, size_t line) : evaluator(e) {
      if (++e.level_ > kDeepestEvaluation) e.place(line).fail("the template goes too deep");
    }
    ~Level() { --evaluator.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
  };

  // --- names ---

  Value lookup(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > first_scope_;) {
      const auto found = scopes_[i].find(name);
      if (found != scopes_[i].end()) return found->second;
    }
    const auto top = scopes_[0].find(name);  // what a macro sees beside its own
    if (top != scopes_[0].end()) return top->second;
    const auto global = globals_.find(name);
    return global == globals_.end() ? Value(Undefined{name}) : global->second;
  }

  void assign(const std::string& name, Value value) { scopes_.back()[name] = std::move(value); }

  // One name takes the value, several take its elements.
  void assign_all(const Place& where, const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
      assign(names[0], value);
      return;
    }
    const List list = elements(where, value);
    if (list.size() != names.size()) {
      where.fail("expected {} values for as many names, found {}", names.size(), list.size());
    }
    for (size_t i = 0; i < names.size(); ++i) assign(names[i], list[i]);
  }

  // --- statements ---

  Flow execute(const std::vector<Statement>& statements, std::string& out) {
    for (const Statement& statement : statements) {
      const Flow flow = execute(statement, out);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow execute(const Statement& s, std::string& out) {
    const Level level(*this, s.line);
    const Place where = place(s.line);
    where.spend(1);
    switch (s.kind) {
      case StatementKind::kText:
        where.spend(s.text.size() / kBytesPerUnit);
        out += s.text;
        return Flow::kOn;
      case StatementKind::kOutput:
        out += to_string(where, evaluate(s.expressions[0]));
        return Flow::kOn;
      case StatementKind::kIf:
        for (size_t i = 0; i < s.bodies.size(); ++i) {
          if (i == s.expressions.size() || truth(evaluate(s.expressions[i]))) {
            return execute(s.bodies[i], out);
          }
        }
        return Flow::kOn;
      case StatementKind::kFor:
        return execute_for(s, out);
      case StatementKind::kSet:
        execute_set(s);
        return Flow::kOn;
      case StatementKind::kSetBlock: {
        std::string text;
        const Flow flow = execute(s.bodies[0], text);
        assign(s.names[0], make_text(where, std::move(text)));
        return flow;
      }
      case StatementKind::kMacro:
        assign(s.text, &s);
        return Flow::kOn;
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void execute_set(const Statement& s) {
    const Place where = place(s.line);
    const Value value = evaluate(s.expressions[0]);
    if (s.text.empty()) {
      assign_all(where, s.names, value);
      return;
    }
    const Value holder = lookup(s.names[0]);
    Namespace* members = holder.members();
    if (members == nullptr) {
      where.fail("expected a namespace to set {} of, found {}", in_quotes(s.text),
                 type_name(holder));
    }
    if (value.members() != nullptr) where.fail("a namespace inside a namespace");
    (*members)[s.text] = value;
  }

  Flow execute_for(const Statement& s, std::string& out) {
    const Place where = place(s.line);
    List all = elements(where, evaluate(s.expressions[0]));
    if (s.expressions.size() > 1) {
      List chosen;
      for (const Value& element : all) {
        scopes_.emplace_back();
        assign_all(where, s.names, element);
        if (truth(evaluate(s.expressions[1]))) chosen.push_back(element);
        scopes_.pop_back();
      }
      all = std::move(chosen);
    }
    const auto count = static_cast<int64_t>(all.size());
    for (int64_t i = 0; i < count; ++i) {
      where.spend(12);
      scopes_.emplace_back();  // what an iteration sets ends with it
      const auto at = static_cast<size_t>(i);
      const Value before = i == 0 ? Value(Undefined{"loop.previtem"}) : all[at - 1];
      const Value after = i + 1 == count ? Value(Undefined{"loop.nextitem"}) : all[at + 1];
      Dict loop = {{"index", i + 1},        {"index0", i},
                   {"revindex", count - i}, {"revindex0", count - i - 1},
                   {"first", i == 0},       {"last", i + 1 == count},
                   {"length", count},       {"previtem", before},
                   {"nextitem", after}};
      Value value;  // not counted as a level: nothing can hold it but an iteration's scope
      value.depth = std::max(before.depth, after.depth);
      value.data = std::make_shared<const Dict>(std::move(loop));
      assign("loop", std::move(value));
      assign_all(where, s.names, all[at]);
      const Flow flow = execute(s.bodies[0], out);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    if (count == 0 && s.bodies.size() > 1) return execute(s.bodies[1], out);
    return Flow::kOn;
  }

  // --- expressions ---

  Value evaluate(const Expression& e) {
    const Level level(*this, e.line);
    const Place where = place(e.line);
    where.spend(1);
    switch (e.kind) {
      case Kind::kLiteral:
        return e.literal;
      case Kind::kName:
        return lookup(e.text);
      case Kind::kList: {
        List list;
        for (const Expression& part : e.parts) list.push_back(evaluate(part));
        return make_list(where, std::move(list));
      }
      case Kind::kDict:
        return evaluate_dict(e);
      case Kind::kAttribute:
        return item(where, evaluate(e.parts[0]), Value(e.text));
      case Kind::kItem:
        return item(where, evaluate(e.parts[0]), evaluate(e.parts[1]));
      case Kind::kSlice: {
        const Value object = evaluate(e.parts[0]);
        const auto part = [&](size_t i) {
          return i < e.parts.size() ? evaluate(e.parts[i]) : Value(None{});
        };
        return slice(where, object, part(1), part(2), part(3));
      }
      case Kind::kCall:
        return evaluate_call(e);
      case Kind::kFilter: {
        const Value input = evaluate(e.parts[0]);
        return apply_filter(where, e.text, input, arguments(e));
      }
      case Kind::kTest: {
        const Value input = evaluate(e.parts[0]);
        return apply_test(where, e.text, input, arguments(e));
      }
      case Kind::kNot:
        return !truth(evaluate(e.parts[0]));
      case Kind::kNegative:
      case Kind::kPositive:
        return sign(where, evaluate(e.parts[0]), e.kind == Kind::kNegative);
      case Kind::kArithmetic: {
        const Value left = evaluate(e.parts[0]);
        return arithmetic(where, e.text, left, evaluate(e.parts[1]));
      }
      case Kind::kJoin: {
        std::string text = to_string(where, evaluate(e.parts[0]));
        text += to_string(where, evaluate(e.parts[1]));
        return make_text(where, std::move(text));
      }
      case Kind::kCompare:
        return evaluate_compare(e);
      case Kind::kAnd: {
        Value left = evaluate(e.parts[0]);
        return truth(left) ? evaluate(e.parts[1]) : left;
      }
      case Kind::kOr: {
        Value left = evaluate(e.parts[0]);
        return truth(left) ? left : evaluate(e.parts[1]);
      }
      case Kind::kConditional:
        if (truth(evaluate(e.parts[1]))) return evaluate(e.parts[0]);
        return e.parts.size() > 2 ? evaluate(e.parts[2]) : Value(Undefined{"an 'if' without else"});
    }
    return {};
  }

  Value evaluate_dict(const Expression& e) {
    const Place where = place(e.line);
    Dict dict;
    for (size_t i = 0; i < e.parts.size(); i += 2) {
      const Value key = evaluate(e.parts[i]);
      if (key.text() == nullptr) {
        where.fail("keys of a dict other than strings are not supported, found {}", type_name(key));
      }
      where.spend(dict.size() / 8);
      put(dict, *key.text(), evaluate(e.parts[i + 1]));
    }
    return make_dict(where, std::move(dict));
  }

  Arguments arguments(const Expression& e) {
    Arguments out;
    const size_t named = e.parts.size() - e.names.size();
    for (size_t i = 1; i < named; ++i) out.positional.push_back(evaluate(e.parts[i]));
    for (size_t i = 0; i < e.names.size(); ++i) {
      out.named.emplace_back(e.names[i], evaluate(e.parts[named + i]));
    }
    return out;
  }

  Value evaluate_call(const Expression& e) {
    const Place where = place(e.line);
    const Expression& callee = e.parts[0];
    Value function;
    if (callee.kind == Kind::kAttribute) {
      const Value object = evaluate(callee.parts[0]);
      if (object.is_undefined()) {
        where.fail("{} is undefined", in_quotes(object.as<Undefined>()->name));
      }
      if (has_method(object, callee.text)) {
        return call_method(where, object, callee.text, arguments(e));
      }
      if (object.dict() != nullptr || object.members() != nullptr) {
        function = item(where, object, Value(callee.text));
      }
      if (function.is_undefined()) {
        where.fail("the method {} of a {} is not supported", in_quotes(callee.text),
                   type_name(object));
      }
    } else {
      function = evaluate(callee);
    }
    if (const Builtin* builtin = function.as<Builtin>()) {
      return call_function(where, *builtin, arguments(e), now_);
    }
    if (const auto* macro = function.as<const Statement*>()) {
      return call_macro(where, **macro, arguments(e));
    }
    if (function.is_undefined()) {
      where.fail("the function {} is not supported", in_quotes(function.as<Undefined>()->name));
    }
    where.fail("a {} cannot be called", type_name(function));
  }

  // A macro sees its parameters and the names set outside of everything.
  Value call_macro(const Place& where, const Statement& macro, const Arguments& given) {
    std::vector<Value> values =
        bind_arguments(where, "macro '" + macro.text + "'", given, macro.names);
    const size_t before = std::exchange(first_scope_, scopes_.size());
    scopes_.emplace_back();
    const size_t plain = macro.names.size() - macro.expressions.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].is_undefined()) {
        values[i] =
            i < plain ? Value(Undefined{macro.names[i]}) : evaluate(macro.expressions[i - plain]);
      }
      assign(macro.names[i], std::move(values[i]));
    }
    std::string text;
    execute(macro.bodies[0], text);
    scopes_.resize(first_scope_);
    first_scope_ = before;
    return make_text(where, std::move(text));
  }

  Value evaluate_compare(const Expression& e) {
    const Place where = place(e.line);
    Value left = evaluate(e.parts[0]);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = evaluate(e.parts[i + 1]);
      if (!holds(where, e.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  const std::string& file_;
  std::map<std::string, Value> globals_;
  std::time_t now_;
  // What has been set: outside of everything, then loop by loop. A macro's are from first_scope_.
  std::vector<Scope> scopes_;
  size_t first_scope_ = 0;
  size_t work_ = kMostWork;
  int level_ = 0;
};

}  // namespace

std::string evaluate(const std::vector<Statement>& statements, const std::string& file,
                     const std::map<std::string, Value>& values, std::time_t now) {
  return Evaluator(file, values, now).run(statements);
}

}  // namespace halflin::jinja
