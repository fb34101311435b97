// What templates call: filters, tests, methods and functions.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halflin/io/jinja/value.h"

namespace halflin::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Each throws Error with the line for a name outside the subset, for arguments that do not fit, and
// for values that the call is not for.
Value apply_filter(const Place& place, const std::string& name, const Value& input,
                   const Arguments& arguments);
bool apply_test(const Place& place, const std::string& name, const Value& input,
                const Arguments& arguments);
// Of strings and dicts.
bool has_method(const Value& value, const std::string& name);
Value call_method(const Place& place, const Value& value, const std::string& name,
                  const Arguments& arguments);
// `now` is what strftime_now writes.
Value call_function(const Place& place, Builtin function, const Arguments& arguments,
                    std::time_t now);

// The arguments in the order of `names`, undefined where missing. Throws Error where there are
// others, or one comes twice.
std::vector<Value> bind_arguments(const Place& place, const std::string& what,
                                  const Arguments& arguments,
                                  const std::vector<std::string>& names);

// What several of them do. `what` names the caller in messages.
Value text_of(const Place& place, std::string_view text);
const std::string& as_text(const Place& place, const Value& value, const std::string& what);
// An argument that may be left out, or none.
std::optional<std::string_view> optional_text(const Place& place, const Value& value,
                                              const std::string& what);
int64_t integer_or(const Place& place, const Value& value, int64_t otherwise,
                   const std::string& what);
// [[key, value], ...]
Value pairs(const Place& place, const Dict& dict);
// `arguments` are old, new, count.
Value replace_in(const Place& place, const std::string& text, const std::string& what,
                 const std::vector<Value>& arguments);
Value join(const Place& place, const List& list, const std::string& separator);

// value[first:last:step] of a list or string, null where left out.
Value slice(const Place& place, const Value& value, const Value& first, const Value& last,
            const Value& step);
// value[key], undefined where there is none.
Value item(const Place& place, const Value& value, const Value& key);

}  // namespace halflin::jinja
