// Python's string functions, on UTF-8. Upper and lower case are those of single characters ("ß" has
// no upper case of two).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halflin::jinja {

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
// As Jinja's filter: each word, not as Python's str.title().
std::string title(std::string_view text);
// Without the characters of `characters` (none: white space) at the ends.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters, bool left,
                       bool right);
// `most` below 0: all.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most);
std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t most);
size_t count_characters(std::string_view text);

}  // namespace halflin::jinja
