#include "halflin/io/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "halflin/io/utf8.h"

namespace halflin::jinja {

namespace {

void append_float(std::string& out, double v) {
  if (std::isnan(v)) {
    out += "nan";
  } else if (std::isinf(v)) {
    out += v < 0 ? "-inf" : "inf";
  } else {
    const std::string text = fmt::format("{}", v);
    out += text;
    if (text.find_first_of(".e") == std::string::npos) out += ".0";
  }
}

// A string as Python's repr() writes it, but for characters that are not printable.
void append_quoted(std::string& out, std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos;
  const bool use_double = !single && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_repr(const Place& place, std::string& out, const Value& value) {
  place.spend(1);
  if (const std::string* text = value.text()) {
    place.spend(text->size() / kBytesPerUnit);
    append_quoted(out, *text);
  } else if (const List* list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->size(); ++i) {
      if (i != 0) out += ", ";
      append_repr(place, out, (*list)[i]);
    }
    out += ']';
  } else if (const Dict* dict = value.dict()) {
    out += '{';
    for (size_t i = 0; i < dict->size(); ++i) {
      if (i != 0) out += ", ";
      append_quoted(out, (*dict)[i].first);
      out += ": ";
      append_repr(place, out, (*dict)[i].second);
    }
    out += '}';
  } else {
    out += to_string(place, value);
  }
}

void append_json_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

struct JsonWriter {
  const Place& place;
  int indent;
  std::string out;

  void new_line(int level) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(level) * static_cast<size_t>(indent), ' ');
  }

  void write(const Value& value, int level) {
    place.spend(1 + (indent < 0 ? 0 : static_cast<size_t>(level * indent) / kBytesPerUnit));
    if (const std::string* text = value.text()) {
      place.spend(text->size() / kBytesPerUnit);
      append_json_text(out, *text);
    } else if (const List* list = value.list()) {
      write_all(list->size(), '[', ']', level, [&](size_t i) { write((*list)[i], level + 1); });
    } else if (const Dict* dict = value.dict()) {
      write_all(dict->size(), '{', '}', level, [&](size_t i) {
        append_json_text(out, (*dict)[i].first);
        out += ": ";
        write((*dict)[i].second, level + 1);
      });
    } else if (const bool* flag = value.as<bool>()) {
      out += *flag ? "true" : "false";
    } else if (value.is_none()) {
      out += "null";
    } else if (is_number(value)) {
      out += to_string(place, value);
    } else {
      place.fail("filter 'tojson': cannot write a value of type {}", type_name(value));
    }
  }

  template <class Write>
  void write_all(size_t count, char open, char close, int level, const Write& write_one) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i != 0) out += indent < 0 ? ", " : ",";
      new_line(level + 1);
      write_one(i);
    }
    if (count != 0) new_line(level);
    out += close;
  }
};

int checked_depth(const Place& place, int below, const Value& element) {
  if (element.members() != nullptr) place.fail("a namespace inside a list or dict");
  const int depth = std::max(below, element.depth + 1);
  if (depth > kDeepestValue) {
    place.fail("lists and dicts more than {} deep in one another", kDeepestValue);
  }
  return depth;
}

}  // namespace

Value make_text(const Place& place, std::string text) {
  place.spend(text.size() / kBytesPerUnit);
  return Value(std::move(text));
}

Value make_list(const Place& place, List list) {
  place.spend(list.size());
  Value value;
  for (const Value& element : list) value.depth = checked_depth(place, value.depth, element);
  value.data = std::make_shared<const List>(std::move(list));
  return value;
}

Value make_dict(const Place& place, Dict dict) {
  place.spend(dict.size());
  Value value;
  for (const auto& [key, member] : dict) value.depth = checked_depth(place, value.depth, member);
  value.data = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value make_namespace(Namespace members) {
  Value value;
  value.data = std::make_shared<Namespace>(std::move(members));
  return value;
}

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kNames[] = {"undefined", "none",   "bool",    "integer",
                                                "float",     "string", "list",    "dict",
                                                "namespace", "macro",  "function"};
  return kNames[value.data.index()];
}

bool truth(const Value& value) {
  if (const bool* flag = value.as<bool>()) return *flag;
  if (is_number(value)) return as_double(value) != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return !list->empty();
  if (const Dict* dict = value.dict()) return !dict->empty();
  return !value.is_none() && !value.is_undefined();
}

bool equal(const Place& place, const Value& a, const Value& b) {
  place.spend(1);
  if (is_number(a) && is_number(b)) return compare(place, a, b) == 0;
  if (a.data.index() != b.data.index()) return false;
  if (const std::string* text = a.text()) {
    place.spend(text->size() / kBytesPerUnit);
    return *text == *b.text();
  }
  if (const List* list = a.list()) {
    const List& other = *b.list();
    if (list->size() != other.size()) return false;
    for (size_t i = 0; i < other.size(); ++i) {
      if (!equal(place, (*list)[i], other[i])) return false;
    }
    return true;
  }
  if (const Dict* dict = a.dict()) {
    if (dict->size() != b.dict()->size()) return false;
    for (const auto& [key, member] : *dict) {
      place.spend(dict->size());
      const Value* other = find(*b.dict(), key);
      if (other == nullptr || !equal(place, member, *other)) return false;
    }
    return true;
  }
  if (a.members() != nullptr) return a.members() == b.members();
  if (const auto* macro = a.as<const Statement*>()) return *macro == *b.as<const Statement*>();
  if (const Builtin* function = a.as<Builtin>()) return *function == *b.as<Builtin>();
  return true;  // two undefined, or two none
}

int compare(const Place& place, const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) {
    place.spend(std::min(a.text()->size(), b.text()->size()) / kBytesPerUnit);
    const int order = a.text()->compare(*b.text());  // of UTF-8: the order of the characters
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (!is_number(a) || !is_number(b)) {
    place.fail("{} and {} cannot be compared", type_name(a), type_name(b));
  }
  if (a.as<double>() == nullptr && b.as<double>() == nullptr) {
    const int64_t x = as_integer(place, a, "");
    const int64_t y = as_integer(place, b, "");
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const double x = as_double(a);
  const double y = as_double(b);
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;  // 2: NaN is neither
}

std::string to_string(const Place& place, const Value& value) {
  if (const std::string* text = value.text()) {
    place.spend(text->size() / kBytesPerUnit);
    return *text;
  }
  if (value.is_undefined()) return {};
  if (value.is_none()) return "None";
  if (const bool* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const int64_t* integer = value.as<int64_t>()) return std::to_string(*integer);
  std::string out;
  if (const double* number = value.as<double>()) {
    append_float(out, *number);
  } else if (value.list() != nullptr || value.dict() != nullptr) {
    append_repr(place, out, value);
  } else {
    place.fail("a {} has no text", type_name(value));
  }
  return out;
}

std::string to_json(const Place& place, const Value& value, int indent) {
  JsonWriter writer{place, indent, {}};
  writer.write(value, 0);
  return writer.out;
}

List elements(const Place& place, const Value& value) {
  List out;
  if (const List* list = value.list()) {
    place.spend(list->size());
    out = *list;
  } else if (const Dict* dict = value.dict()) {
    place.spend(dict->size());
    for (const auto& [key, member] : *dict) out.emplace_back(key);
  } else if (const std::string* text = value.text()) {
    place.spend(text->size());
    for (size_t i = 0; i < text->size();) {
      const size_t length = utf8_length((*text)[i]);
      out.emplace_back(text->substr(i, length));
      i += length;
    }
  } else if (!value.is_undefined()) {
    place.fail("a value of type {} has no elements to go through", type_name(value));
  }
  return out;
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict) {
    if (name == key) return &value;
  }
  return nullptr;
}

void put(Dict& dict, const std::string& key, Value value) {
  for (auto& [name, member] : dict) {
    if (name == key) {
      member = std::move(value);
      return;
    }
  }
  dict.emplace_back(key, std::move(value));
}

bool is_number(const Value& value) {
  return value.as<bool>() != nullptr || value.as<int64_t>() != nullptr ||
         value.as<double>() != nullptr;
}

double as_double(const Value& value) {
  if (const bool* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const int64_t* integer = value.as<int64_t>()) return static_cast<double>(*integer);
  const double* number = value.as<double>();
  return number == nullptr ? 0 : *number;
}

int64_t as_integer(const Place& place, const Value& value, std::string_view what) {
  if (const bool* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const int64_t* integer = value.as<int64_t>()) return *integer;
  place.fail("{}: expected an integer, found {}", what, type_name(value));
}

}  // namespace halflin::jinja
