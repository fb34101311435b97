// A parsed template and the values it is given into text.
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "halflin/io/jinja/syntax.h"

namespace halflin::jinja {

// `values`: the names that the template may use, besides Jinja's functions. Throws Error with the
// line for what goes wrong, and where the template takes more steps, memory or depth than any chat
// needs.
std::string evaluate(const std::vector<Statement>& statements, const std::string& file,
                     const std::map<std::string, Value>& values, std::time_t now);

// -value or +value.
Value sign(const Place& where, const Value& value, bool negative);
// a `op` b of + - * / // %; strings and lists, too, where Python has that.
Value arithmetic(const Place& where, const std::string& op, const Value& a, const Value& b);
// a `op` b of == != < <= > >= in, not in.
bool holds(const Place& where, const std::string& op, const Value& a, const Value& b);

}  // namespace halflin::jinja
