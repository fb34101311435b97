// Methods and functions, and what filters share with them.
#include "halflin/io/jinja/builtins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "halflin/io/jinja/text_functions.h"
#include "halflin/io/printable.h"
#include "halflin/io/utf8.h"

namespace halflin::jinja {

namespace {

constexpr int64_t kLongestRange = 100000;

Value string_list(const Place& place, const std::vector<std::string>& strings) {
  List list;
  for (const std::string& s : strings) list.push_back(make_text(place, s));
  return make_list(place, std::move(list));
}

}  // namespace

Value text_of(const Place& place, std::string_view text) {
  return make_text(place, std::string(text));
}

const std::string& as_text(const Place& place, const Value& value, const std::string& what) {
  const std::string* text = value.text();
  if (text == nullptr) place.fail("{}: expected a string, found {}", what, type_name(value));
  return *text;
}

std::optional<std::string_view> optional_text(const Place& place, const Value& value,
                                              const std::string& what) {
  if (value.is_undefined() || value.is_none()) return std::nullopt;
  return as_text(place, value, what);
}

int64_t integer_or(const Place& place, const Value& value, int64_t otherwise,
                   const std::string& what) {
  return value.is_undefined() ? otherwise : as_integer(place, value, what);
}

Value pairs(const Place& place, const Dict& dict) {
  List list;
  for (const auto& [key, value] : dict) {
    list.push_back(make_list(place, {make_text(place, key), value}));
  }
  return make_list(place, std::move(list));
}

Value replace_in(const Place& place, const std::string& text, const std::string& what,
                 const std::vector<Value>& a) {
  const std::string& from = as_text(place, a[0], what);
  const std::string& to = as_text(place, a[1], what);
  const bool all = a[2].is_undefined() || a[2].is_none();
  const int64_t most = all ? -1 : as_integer(place, a[2], what);
  // Paid for before the memory is taken.
  const size_t matches = text.size() / std::max<size_t>(from.size(), 1) + 1;
  place.spend(matches * to.size() / kBytesPerUnit + text.size() / kBytesPerUnit);
  return Value(replace(text, from, to, most));
}

Value join(const Place& place, const List& list, const std::string& separator) {
  std::string out;
  for (size_t i = 0; i < list.size(); ++i) {
    place.spend(1 + separator.size() / kBytesPerUnit);
    if (i != 0) out += separator;
    out += to_string(place, list[i]);
  }
  return make_text(place, std::move(out));
}

std::vector<Value> bind_arguments(const Place& place, const std::string& what,
                                  const Arguments& arguments,
                                  const std::vector<std::string>& names) {
  std::vector<Value> values(names.size());
  if (arguments.positional.size() > names.size()) {
    place.fail("{}: expected at most {} arguments, found {}", what, names.size(),
               arguments.positional.size());
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto at =
        static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size()) {
      place.fail("{}: the argument {} is not supported", what, in_quotes(name));
    }
    if (at < arguments.positional.size()) {
      place.fail("{}: the argument {} comes twice", what, in_quotes(name));
    }
    values[at] = value;
  }
  return values;
}

bool has_method(const Value& value, const std::string& name) {
  static constexpr std::array<std::string_view, 17> kText = {
      "strip",        "lstrip",       "rstrip", "startswith", "endswith", "upper",
      "lower",        "capitalize",   "title",  "replace",    "split",    "join",
      "removeprefix", "removesuffix", "find",   "count",      "rsplit"};
  static constexpr std::array<std::string_view, 4> kDict = {"items", "keys", "values", "get"};
  if (value.text() != nullptr) return std::find(kText.begin(), kText.end(), name) != kText.end();
  if (value.dict() != nullptr) return std::find(kDict.begin(), kDict.end(), name) != kDict.end();
  return false;
}

namespace {

Value call_dict_method(const Place& place, const Dict& dict, const std::string& name,
                       const Arguments& arguments) {
  const std::string what = "method '" + name + "'";
  if (name == "get") {
    const std::vector<Value> a = bind_arguments(place, what, arguments, {"key", "default"});
    if (a[0].text() != nullptr) {
      place.spend(dict.size() / 8);
      if (const Value* member = find(dict, *a[0].text())) return *member;
    }
    return a[1].is_undefined() ? Value(None{}) : a[1];
  }
  bind_arguments(place, what, arguments, {});
  if (name == "items") return pairs(place, dict);
  List out;
  for (const auto& [key, member] : dict) {
    out.push_back(name == "keys" ? make_text(place, key) : member);
  }
  return make_list(place, std::move(out));
}

// startswith and endswith take one string or several.
bool any_affix(const Place& place, const Value& affixes, const std::string& what,
               const std::function<bool(const std::string&)>& holds) {
  if (const List* list = affixes.list()) {
    return std::any_of(list->begin(), list->end(),
                       [&](const Value& v) { return holds(as_text(place, v, what)); });
  }
  return holds(as_text(place, affixes, what));
}

Value call_text_method(const Place& place, const std::string& text, const std::string& name,
                       const Arguments& arguments) {
  const std::string what = "method '" + name + "'";
  const auto args = [&](const std::vector<std::string>& names) {
    return bind_arguments(place, what, arguments, names);
  };
  place.spend(text.size() / kBytesPerUnit);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const std::vector<Value> a = args({"chars"});
    return text_of(
        place, strip(text, optional_text(place, a[0], what), name != "rstrip", name != "lstrip"));
  }
  if (name == "startswith") {
    return any_affix(place, args({"prefix"})[0], what,
                     [&](const std::string& prefix) { return text.starts_with(prefix); });
  }
  if (name == "endswith") {
    return any_affix(place, args({"suffix"})[0], what,
                     [&](const std::string& suffix) { return text.ends_with(suffix); });
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const bool front = name == "removeprefix";
    const std::string affix = as_text(place, args({"affix"})[0], what);
    if (front ? !text.starts_with(affix) : !text.ends_with(affix)) return text_of(place, text);
    const size_t left = text.size() - affix.size();
    return text_of(place, std::string_view(text).substr(front ? affix.size() : 0, left));
  }
  if (name == "replace") return replace_in(place, text, what, args({"old", "new", "count"}));
  if (name == "join") {
    return join(place, elements(place, args({"iterable"})[0]), text);
  }
  if (name == "find") {
    const std::string part = as_text(place, args({"sub"})[0], what);
    const size_t at = text.find(part);
    if (at == std::string::npos) return int64_t{-1};
    return static_cast<int64_t>(count_characters(std::string_view(text).substr(0, at)));
  }
  if (name == "count") {
    const std::string part = as_text(place, args({"sub"})[0], what);
    if (part.empty()) return static_cast<int64_t>(count_characters(text) + 1);
    int64_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos;
         at = text.find(part, at + part.size())) {
      ++count;
    }
    return count;
  }
  if (name == "split" || name == "rsplit") {
    const std::vector<Value> a = args({"sep", "maxsplit"});
    const std::optional<std::string_view> separator = optional_text(place, a[0], what);
    const int64_t most = integer_or(place, a[1], -1, what);
    if (separator && separator->empty()) place.fail("{}: the separator is empty", what);
    if (name == "rsplit" && most >= 0) {
      place.fail("method 'rsplit': 'maxsplit' is not supported");
    }
    place.spend(text.size());  // about what as many strings as there may be take
    return string_list(place, split(text, separator, most));
  }
  args({});
  if (name == "upper") return make_text(place, upper(text));
  if (name == "lower") return make_text(place, lower(text));
  if (name == "title") return make_text(place, title(text));
  return make_text(place, capitalize(text));
}

Value range(const Place& place, const Arguments& arguments) {
  const std::vector<Value> a =
      bind_arguments(place, "function 'range'", arguments, {"a", "b", "step"});
  const auto number = [&](const Value& v) { return as_integer(place, v, "function 'range'"); };
  const bool one = a[1].is_undefined();
  const int64_t begin = one ? 0 : number(a[0]);
  const int64_t end = one ? number(a[0]) : number(a[1]);
  const int64_t step = a[2].is_undefined() ? 1 : number(a[2]);
  if (step == 0) place.fail("function 'range': a step of 0");
  // Doubles do not overflow, and are exact up to lengths that matter.
  const double steps =
      (static_cast<double>(end) - static_cast<double>(begin)) / static_cast<double>(step);
  if (steps > static_cast<double>(kLongestRange)) {
    place.fail("function 'range': expected at most {} numbers, found more", kLongestRange);
  }
  List out;
  int64_t i = begin;
  while (step > 0 ? i < end : i > end) {
    place.spend(1);
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(place, std::move(out));
}

Value strftime_now(const Place& place, const Arguments& arguments, std::time_t now) {
  const std::string what = "function 'strftime_now'";
  const std::string format =
      as_text(place, bind_arguments(place, what, arguments, {"format"})[0], what);
  if (format.size() > 256 || format.find('\0') != std::string::npos) {
    place.fail("{}: expected a format of at most 256 characters", what);
  }
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 8192> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  std::string text(buffer.data(), size);
  if (find_invalid_utf8(text) != std::string::npos) {
    place.fail("{}: the format {} gives no UTF-8", what, in_quotes(format));
  }
  return make_text(place, std::move(text));
}

}  // namespace

Value call_method(const Place& place, const Value& value, const std::string& name,
                  const Arguments& arguments) {
  if (const std::string* text = value.text())
    return call_text_method(place, *text, name, arguments);
  if (const Dict* dict = value.dict()) return call_dict_method(place, *dict, name, arguments);
  place.fail("the method {} of a {} is not supported", in_quotes(name), type_name(value));
}

Value call_function(const Place& place, Builtin function, const Arguments& arguments,
                    std::time_t now) {
  switch (function) {
    case Builtin::kRange:
      return range(place, arguments);
    case Builtin::kRaiseException: {
      const std::vector<Value> a = bind_arguments(place, "raise_exception", arguments, {"message"});
      place.fail("the chat template does not take these messages: {}", to_string(place, a[0]));
    }
    case Builtin::kStrftimeNow:
      return strftime_now(place, arguments, now);
    case Builtin::kNamespace:
    case Builtin::kDict:
      break;
  }
  Dict members;
  if (!arguments.positional.empty()) {
    if (arguments.positional.size() > 1 || arguments.positional[0].dict() == nullptr) {
      place.fail("'namespace' and 'dict' take one dict, or named arguments");
    }
    members = *arguments.positional[0].dict();
  }
  for (const auto& [name, value] : arguments.named) {
    place.spend(members.size() / 8);
    put(members, name, value);
  }
  if (function == Builtin::kDict) return make_dict(place, std::move(members));
  make_dict(place, members);  // for its checks
  return make_namespace({members.begin(), members.end()});
}

Value slice(const Place& place, const Value& value, const Value& first, const Value& last,
            const Value& step) {
  if (value.text() == nullptr && value.list() == nullptr) {
    place.fail("a value of type {} has no slices", type_name(value));
  }
  const List all = elements(place, value);
  const auto number = [&](const Value& v, int64_t otherwise) {
    return v.is_none() ? otherwise : as_integer(place, v, "a slice");
  };
  const int64_t by = number(step, 1);
  if (by == 0) place.fail("a slice with a step of 0");
  const auto size = static_cast<int64_t>(all.size());
  // Python's rules: from the end where negative, then into the range that the direction allows.
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& v, int64_t otherwise) {
    const int64_t i = number(v, otherwise);
    return v.is_none() ? i : std::clamp(i < 0 ? i + size : i, low, high);
  };
  const int64_t begin = bound(first, by > 0 ? low : high);
  const int64_t end = bound(last, by > 0 ? high : low);
  List out;
  for (int64_t i = begin; by > 0 ? i < end : i > end;) {
    out.push_back(all[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return value.text() != nullptr ? join(place, out, "") : make_list(place, std::move(out));
}

Value item(const Place& place, const Value& value, const Value& key) {
  if (value.is_undefined()) place.fail("{} is undefined", in_quotes(value.as<Undefined>()->name));
  if (const std::string* name = key.text()) {
    if (const Dict* dict = value.dict()) {
      place.spend(dict->size() / 8);
      if (const Value* member = find(*dict, *name)) return *member;
    } else if (const Namespace* members = value.members()) {
      const auto member = members->find(*name);
      if (member != members->end()) return member->second;
    }
    return Undefined{*name};
  }
  if (value.list() == nullptr && value.text() == nullptr) {
    return Undefined{to_string(place, key)};
  }
  int64_t index = as_integer(place, key, "an index");
  if (const List* list = value.list()) {
    const auto size = static_cast<int64_t>(list->size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return Undefined{fmt::format("element {}", index)};
    return (*list)[static_cast<size_t>(index)];
  }
  const List characters = elements(place, value);
  const auto size = static_cast<int64_t>(characters.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{fmt::format("element {}", index)};
  return characters[static_cast<size_t>(index)];
}

}  // namespace halflin::jinja
