// io/jinja/: as much of the Jinja template language as chat templates use. Templates come with
// checkpoints and are hostile input: nesting, work and output are bounded, and nothing is reached
// from them but the values they are given.
//
// Values are those of Python that a template can make. They never change once made, except a
// namespace's members.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "halflin/base/error.h"

namespace halflin::jinja {

struct Statement;
struct Value;

using List = std::vector<Value>;
// In the order the members were written, keys different.
using Dict = std::vector<std::pair<std::string, Value>>;
using Namespace = std::map<std::string, Value>;

// The value of a name that nothing defines; `name` is for messages.
struct Undefined {
  std::string name;
};
struct None {};
enum class Builtin : uint8_t { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

struct Value {
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               const Statement*, Builtin>
      data;
  int depth = 0;  // of lists and dicts in one another

  Value() = default;
  Value(Undefined v) : data(std::move(v)) {}
  Value(None v) : data(v) {}
  Value(bool v) : data(v) {}
  Value(int64_t v) : data(v) {}
  Value(double v) : data(v) {}
  Value(std::string v) : data(std::make_shared<const std::string>(std::move(v))) {}
  Value(const char* v) : Value(std::string(v)) {}
  Value(Builtin v) : data(v) {}
  Value(const Statement* macro) : data(macro) {}

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  // Null where the value is of another type.
  const std::string* text() const {
    const auto* p = as<std::shared_ptr<const std::string>>();
    return p == nullptr ? nullptr : p->get();
  }
  const List* list() const {
    const auto* p = as<std::shared_ptr<const List>>();
    return p == nullptr ? nullptr : p->get();
  }
  const Dict* dict() const {
    const auto* p = as<std::shared_ptr<const Dict>>();
    return p == nullptr ? nullptr : p->get();
  }
  Namespace* members() const {
    const auto* p = as<std::shared_ptr<Namespace>>();
    return p == nullptr ? nullptr : p->get();
  }
};

// Where an error is, and how much work is left to do.
struct Place {
  const std::string& file;
  size_t line;
  size_t& work;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    halflin::fail("{}: line {}: {}", file, line, fmt::format(format, std::forward<Args>(args)...));
  }
  // One unit is about one step of evaluation, or kBytesPerUnit bytes copied.
  void spend(size_t units) const {
    if (units > work) fail("the template does not come to an end within its bounds");
    work -= units;
  }
};
inline constexpr size_t kBytesPerUnit = 32;
inline constexpr int kDeepestValue = 24;

// These spend for what they make. Namespaces cannot be put into lists and dicts.
Value make_text(const Place& place, std::string text);
Value make_list(const Place& place, List list);
Value make_dict(const Place& place, Dict dict);
Value make_namespace(Namespace members);

// "string", "integer", ... for messages.
std::string_view type_name(const Value& value);
bool truth(const Value& value);
bool equal(const Place& place, const Value& a, const Value& b);
// -1, 0, 1 of two numbers or two strings; an error for others.
int compare(const Place& place, const Value& a, const Value& b);
// As Python's str() writes it.
std::string to_string(const Place& place, const Value& value);
// As Python's json.dumps(value, ensure_ascii=False, indent=indent) does; indent below 0: one line.
std::string to_json(const Place& place, const Value& value, int indent);
// What a for loop goes through: a list's elements, a dict's keys, a string's characters.
List elements(const Place& place, const Value& value);
// The value under `key`, or null.
const Value* find(const Dict& dict, std::string_view key);
// Puts `value` under `key`, where a member of that key was or else at the end.
void put(Dict& dict, const std::string& key, Value value);
// A number, for arithmetic: bool, integer or float.
bool is_number(const Value& value);
double as_double(const Value& value);
// A bool or an integer; an error naming `what` for others.
int64_t as_integer(const Place& place, const Value& value, std::string_view what);

}  // namespace halflin::jinja
