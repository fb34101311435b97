// Jinja's filters and tests.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "halflin/io/jinja/builtins.h"
#include "halflin/io/jinja/text_functions.h"
#include "halflin/io/printable.h"

namespace halflin::jinja {

namespace {

constexpr int64_t kDeepestIndent = 64;

Value length_of(const Place& place, const Value& value) {
  if (const std::string* text = value.text()) {
    place.spend(text->size() / kBytesPerUnit);
    return static_cast<int64_t>(count_characters(*text));
  }
  if (const List* list = value.list()) return static_cast<int64_t>(list->size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->size());
  if (value.is_undefined()) return int64_t{0};
  place.fail("a value of type {} has no length", type_name(value));
}

Value to_integer(const Place& place, const Value& value, const Value& otherwise) {
  if (const double* number = value.as<double>()) {
    return std::abs(*number) < 9e18 ? Value(static_cast<int64_t>(*number)) : otherwise;
  }
  if (is_number(value)) return as_integer(place, value, "");
  if (const std::string* text = value.text()) {
    const std::string_view digits = strip(*text, std::nullopt, true, true);
    const bool sign = digits.starts_with('-') || digits.starts_with('+');
    const bool plain = digits.size() > (sign ? 1 : 0) && digits.size() < 19 &&
                       digits.find_first_not_of("0123456789", sign ? 1 : 0) == std::string::npos;
    if (plain) return static_cast<int64_t>(std::stoll(std::string(digits)));
  }
  return otherwise;
}

Value indent(const Place& place, const std::string& text, const std::vector<Value>& a) {
  std::string margin(4, ' ');
  if (a[0].text() != nullptr) {
    margin = *a[0].text();
  } else {
    const int64_t width = integer_or(place, a[0], 4, "filter 'indent'");
    if (width < 0 || width > kDeepestIndent) {
      place.fail("filter 'indent': expected a width of at most {}, found {}", kDeepestIndent,
                 width);
    }
    margin.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = truth(a[1]);
  const bool blank = truth(a[2]);
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  place.spend(lines * margin.size() / kBytesPerUnit);
  std::string out;
  for (size_t begin = 0, line = 0; begin <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool is_blank = end == begin;
    if (line == 0 ? first : blank || !is_blank) out += margin;
    out.append(text, begin, end - begin);
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return make_text(place, std::move(out));
}

// selectattr, rejectattr, select, reject: arguments are (attribute,) test, test's arguments.
Value choose(const Place& place, const std::string& name, const Value& input, Arguments arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool keep = name.starts_with("select");
  const std::string what = "filter '" + name + "'";
  if (!arguments.named.empty()) place.fail("{}: named arguments are not supported", what);
  std::vector<Value>& list = arguments.positional;
  Value attribute;
  if (by_attribute) {
    if (list.empty()) place.fail("{}: expected the name of an attribute", what);
    attribute = list[0];
    as_text(place, attribute, what);
    list.erase(list.begin());
  }
  std::string test;
  if (!list.empty()) {
    test = as_text(place, list[0], what);
    list.erase(list.begin());
  }
  List out;
  for (const Value& element : elements(place, input)) {
    place.spend(1);
    const Value tested = by_attribute ? item(place, element, attribute) : element;
    const bool holds = test.empty() ? truth(tested) : apply_test(place, test, tested, arguments);
    if (holds == keep) out.push_back(element);
  }
  return make_list(place, std::move(out));
}

// map(attribute='name'[, default=...]), or map('filter', ...).
Value map_each(const Place& place, const Value& input, Arguments arguments) {
  List out;
  if (arguments.positional.empty()) {
    const std::vector<Value> a =
        bind_arguments(place, "filter 'map'", arguments, {"attribute", "default"});
    as_text(place, a[0], "filter 'map'");
    for (const Value& element : elements(place, input)) {
      Value member = item(place, element, a[0]);
      out.push_back(member.is_undefined() ? a[1] : member);
    }
  } else {
    const std::string filter = as_text(place, arguments.positional[0], "filter 'map'");
    if (filter == "map") place.fail("filter 'map': 'map' of 'map' is not supported");
    arguments.positional.erase(arguments.positional.begin());
    for (const Value& element : elements(place, input)) {
      place.spend(1);
      out.push_back(apply_filter(place, filter, element, arguments));
    }
  }
  return make_list(place, std::move(out));
}

Value end_element(const Place& place, const Value& input, bool first) {
  if (const List* list = input.list()) {
    if (list->empty()) return Undefined{"an element of an empty list"};
    return first ? list->front() : list->back();
  }
  List all = elements(place, input);
  if (all.empty()) return Undefined{"an element of nothing"};
  return first ? std::move(all.front()) : std::move(all.back());
}

Value reverse(const Place& place, const Value& input) {
  List all = elements(place, input);
  std::reverse(all.begin(), all.end());
  return input.text() != nullptr ? join(place, all, "") : make_list(place, std::move(all));
}

enum class Filter : uint8_t {
  kAbs,
  kCapitalize,
  kDefault,
  kFirst,
  kFloat,
  kIndent,
  kInt,
  kItems,
  kJoin,
  kLast,
  kLength,
  kList,
  kLower,
  kMap,
  kReject,
  kReplace,
  kReverse,
  kSafe,
  kString,
  kTitle,
  kToJson,
  kTrim,
  kUpper,
};

struct FilterRow {
  std::string_view name;
  Filter filter;
};
constexpr FilterRow kFilters[] = {
    {"abs", Filter::kAbs},           {"capitalize", Filter::kCapitalize},
    {"count", Filter::kLength},      {"d", Filter::kDefault},
    {"default", Filter::kDefault},   {"first", Filter::kFirst},
    {"float", Filter::kFloat},       {"indent", Filter::kIndent},
    {"int", Filter::kInt},           {"items", Filter::kItems},
    {"join", Filter::kJoin},         {"last", Filter::kLast},
    {"length", Filter::kLength},     {"list", Filter::kList},
    {"lower", Filter::kLower},       {"map", Filter::kMap},
    {"reject", Filter::kReject},     {"rejectattr", Filter::kReject},
    {"replace", Filter::kReplace},   {"reverse", Filter::kReverse},
    {"safe", Filter::kSafe},         {"select", Filter::kReject},
    {"selectattr", Filter::kReject}, {"string", Filter::kString},
    {"title", Filter::kTitle},       {"tojson", Filter::kToJson},
    {"trim", Filter::kTrim},         {"upper", Filter::kUpper},
};

}  // namespace

Value apply_filter(const Place& place, const std::string& name, const Value& input,
                   const Arguments& arguments) {
  const auto row = std::find_if(std::begin(kFilters), std::end(kFilters),
                                [&](const FilterRow& r) { return r.name == name; });
  if (row == std::end(kFilters)) place.fail("the filter {} is not supported", in_quotes(name));
  const std::string what = "filter '" + name + "'";
  const auto args = [&](const std::vector<std::string>& names) {
    return bind_arguments(place, what, arguments, names);
  };
  // Jinja's text filters take any value by its text.
  const auto text = [&] { return to_string(place, input); };
  switch (row->filter) {
    case Filter::kAbs:
      args({});
      if (const double* number = input.as<double>()) return std::abs(*number);
      return input.as<int64_t>() != nullptr &&
                     *input.as<int64_t>() == std::numeric_limits<int64_t>::min()
                 ? Value(-as_double(input))
                 : Value(std::abs(as_integer(place, input, what)));
    case Filter::kCapitalize:
      args({});
      return make_text(place, capitalize(text()));
    case Filter::kDefault: {
      const std::vector<Value> a = args({"default_value", "boolean"});
      const bool missing = input.is_undefined() || (truth(a[1]) && !truth(input));
      return !missing ? input : a[0].is_undefined() && arguments.positional.empty() ? "" : a[0];
    }
    case Filter::kFirst:
    case Filter::kLast:
      args({});
      return end_element(place, input, row->filter == Filter::kFirst);
    case Filter::kFloat: {
      args({});
      if (!is_number(input)) place.fail("{}: a {} is not supported", what, type_name(input));
      return as_double(input);
    }
    case Filter::kIndent:
      return indent(place, text(), args({"width", "first", "blank"}));
    case Filter::kInt: {
      const std::vector<Value> a = args({"default"});
      return to_integer(place, input, a[0].is_undefined() ? Value(int64_t{0}) : a[0]);
    }
    case Filter::kItems:
      args({});
      if (input.is_undefined()) return make_list(place, {});
      if (input.dict() == nullptr) {
        place.fail("{}: expected a dict, found {}", what, type_name(input));
      }
      return pairs(place, *input.dict());
    case Filter::kJoin: {
      const std::vector<Value> a = args({"d"});
      return join(place, elements(place, input), a[0].is_undefined() ? "" : to_string(place, a[0]));
    }
    case Filter::kLength:
      args({});
      return length_of(place, input);
    case Filter::kList:
      args({});
      return make_list(place, elements(place, input));
    case Filter::kLower:
      args({});
      return make_text(place, lower(text()));
    case Filter::kMap:
      return map_each(place, input, arguments);
    case Filter::kReject:
      return choose(place, name, input, arguments);
    case Filter::kReplace:
      return replace_in(place, text(), what, args({"old", "new", "count"}));
    case Filter::kReverse:
      args({});
      return reverse(place, input);
    case Filter::kSafe:
      args({});
      return input;
    case Filter::kString:
      args({});
      return make_text(place, text());
    case Filter::kTitle:
      args({});
      return make_text(place, title(text()));
    case Filter::kToJson: {
      const std::vector<Value> a = args({"indent", "ensure_ascii"});
      if (truth(a[1])) place.fail("{}: ensure_ascii=true is not supported", what);
      const bool one_line = a[0].is_undefined() || a[0].is_none();
      const int64_t width = one_line ? -1 : as_integer(place, a[0], what);
      if (width > kDeepestIndent || (width < 0 && !one_line)) {
        place.fail("{}: expected an indent from 0 to {}, found {}", what, kDeepestIndent, width);
      }
      return make_text(place, to_json(place, input, static_cast<int>(width)));
    }
    case Filter::kTrim: {
      const std::vector<Value> a = args({"chars"});
      const std::string whole = text();
      return text_of(place, strip(whole, optional_text(place, a[0], what), true, true));
    }
    case Filter::kUpper:
      args({});
      return make_text(place, upper(text()));
  }
  return {};
}

bool apply_test(const Place& place, const std::string& name, const Value& input,
                const Arguments& arguments) {
  const std::string what = "test '" + name + "'";
  const auto other = [&] {
    const std::vector<Value> a = bind_arguments(place, what, arguments, {"other"});
    if (arguments.positional.empty()) place.fail("{}: expected an argument", what);
    return a[0];
  };
  if (name == "equalto" || name == "eq" || name == "==") return equal(place, input, other());
  if (name == "ne" || name == "!=") return !equal(place, input, other());
  if (name == "lt" || name == "<") return compare(place, input, other()) == -1;
  if (name == "gt" || name == ">") return compare(place, input, other()) == 1;
  if (name == "divisibleby") {
    const int64_t by = as_integer(place, other(), what);
    if (by == 0) place.fail("{}: a division by zero", what);
    return by == -1 || as_integer(place, input, what) % by == 0;
  }
  if (name == "in") {
    const Value all = other();
    if (input.text() != nullptr && all.text() != nullptr) {
      return all.text()->find(*input.text()) != std::string::npos;
    }
    const List list = elements(place, all);
    return std::any_of(list.begin(), list.end(),
                       [&](const Value& v) { return equal(place, input, v); });
  }
  static constexpr std::array<std::string_view, 18> kPlain = {
      "boolean", "callable", "defined", "even",    "false",     "float",
      "integer", "iterable", "lower",   "mapping", "none",      "number",
      "odd",     "sequence", "string",  "true",    "undefined", "upper"};
  if (std::find(kPlain.begin(), kPlain.end(), name) == kPlain.end()) {
    place.fail("the test {} is not supported", in_quotes(name));
  }
  bind_arguments(place, what, arguments, {});
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "boolean") return input.as<bool>() != nullptr;
  if (name == "true") return input.as<bool>() != nullptr && *input.as<bool>();
  if (name == "false") return input.as<bool>() != nullptr && !*input.as<bool>();
  if (name == "integer") return input.as<int64_t>() != nullptr;
  if (name == "float") return input.as<double>() != nullptr;
  if (name == "number") return is_number(input);
  if (name == "string") return input.text() != nullptr;
  if (name == "mapping") return input.dict() != nullptr;
  if (name == "iterable" || name == "sequence") {
    return input.text() != nullptr || input.list() != nullptr || input.dict() != nullptr ||
           input.is_undefined();
  }
  if (name == "callable") {
    return input.as<const Statement*>() != nullptr || input.as<Builtin>() != nullptr;
  }
  if (name == "odd") return as_integer(place, input, what) % 2 != 0;
  if (name == "even") return as_integer(place, input, what) % 2 == 0;
  if (name == "lower") return input.text() != nullptr && lower(*input.text()) == *input.text();
  return input.text() != nullptr && upper(*input.text()) == *input.text();
}

}  // namespace halflin::jinja
