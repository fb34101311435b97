// JSON from files that nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace halflin {

// Parses one JSON document. Throws Error (one line: `name`, byte offset, what was found) on a
// syntax error, on nesting deeper than 64, and on a key that an object holds twice.
nlohmann::json parse_json(std::string_view text, const std::string& name);

// The member of that key, or null where `object` has none or is no object.
const nlohmann::json* find_member(const nlohmann::json& object, const std::string& key);

}  // namespace halflin
