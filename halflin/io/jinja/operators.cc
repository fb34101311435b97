#include <cmath>
#include <limits>

#include "halflin/io/jinja/evaluate.h"
#include "halflin/io/printable.h"

namespace halflin::jinja {

namespace {

Value repeat(const Place& where, const std::string& text, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  size_t bytes = 0;
  if (__builtin_mul_overflow(text.size(), count, &bytes)) {
    bytes = std::numeric_limits<size_t>::max();
  }
  where.spend(bytes / kBytesPerUnit);
  std::string out;
  if (!text.empty()) {
    out.reserve(bytes);
    for (size_t i = 0; i < count; ++i) out += text;
  }
  return out;
}

Value whole_arithmetic(const Place& where, const std::string& op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else {
    if (b == 0) where.fail("a division by zero");
    if (b == -1) {
      overflow = __builtin_sub_overflow(int64_t{0}, a, &out);
      if (op == "%") return int64_t{0};
    } else {  // rounded down, as in Python
      const int64_t rest = a % b;
      const bool down = rest != 0 && (rest < 0) != (b < 0);
      out = op == "%" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
    }
  }
  if (overflow) where.fail("an integer beyond 64 bits");
  return out;
}

Value float_arithmetic(const Place& where, const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (b == 0) where.fail("a division by zero");
  if (op == "/") return a / b;
  const double down = std::floor(a / b);
  return op == "//" ? down : a - down * b;
}

bool contains(const Place& where, const Value& all, const Value& value) {
  if (const std::string* text = all.text()) {
    if (value.text() == nullptr) {
      where.fail("'in': a {} cannot be in a string", type_name(value));
    }
    where.spend(text->size() / kBytesPerUnit);
    return text->find(*value.text()) != std::string::npos;
  }
  if (const Dict* dict = all.dict()) {
    where.spend(dict->size() / 8);
    return value.text() != nullptr && find(*dict, *value.text()) != nullptr;
  }
  if (const List* list = all.list()) {
    for (const Value& element : *list) {
      if (equal(where, element, value)) return true;
    }
    return false;
  }
  if (all.is_undefined()) return false;
  where.fail("'in': nothing is in a {}", type_name(all));
}

}  // namespace

Value sign(const Place& where, const Value& value, bool negative) {
  if (!is_number(value)) where.fail("a {} has no sign", type_name(value));
  if (value.as<double>() != nullptr) return negative ? -as_double(value) : as_double(value);
  int64_t integer = as_integer(where, value, "");
  if (negative && __builtin_sub_overflow(int64_t{0}, integer, &integer)) {
    where.fail("an integer beyond 64 bits");
  }
  return integer;
}

Value arithmetic(const Place& where, const std::string& op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) where.fail("{} is undefined", in_quotes(v->as<Undefined>()->name));
  }
  if (is_number(a) && is_number(b)) {
    const bool whole = a.as<double>() == nullptr && b.as<double>() == nullptr && op != "/";
    return whole ? whole_arithmetic(where, op, as_integer(where, a, ""), as_integer(where, b, ""))
                 : float_arithmetic(where, op, as_double(a), as_double(b));
  }
  if (op == "+" && a.text() != nullptr && b.text() != nullptr) {
    return make_text(where, *a.text() + *b.text());
  }
  if (op == "+" && a.list() != nullptr && b.list() != nullptr) {
    where.spend(a.list()->size() + b.list()->size());
    List list = *a.list();
    list.insert(list.end(), b.list()->begin(), b.list()->end());
    return make_list(where, std::move(list));
  }
  if (op == "*" && a.text() != nullptr && b.as<int64_t>() != nullptr) {
    return repeat(where, *a.text(), *b.as<int64_t>());
  }
  if (op == "*" && b.text() != nullptr && a.as<int64_t>() != nullptr) {
    return repeat(where, *b.text(), *a.as<int64_t>());
  }
  where.fail("'{}' of {} and {} is not supported", op, type_name(a), type_name(b));
}

bool holds(const Place& where, const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(where, a, b);
  if (op == "!=") return !equal(where, a, b);
  if (op == "in") return contains(where, b, a);
  if (op == "not in") return !contains(where, b, a);
  const int order = compare(where, a, b);
  if (op == "<") return order == -1;
  if (op == ">") return order == 1;
  return order == 0 || order == (op == "<=" ? -1 : 1);
}

}  // namespace halflin::jinja
