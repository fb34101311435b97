#include "halflin/io/jinja/text_functions.h"

#include <utf8proc.h>

#include "halflin/io/utf8.h"

namespace halflin::jinja {

namespace {

// str.isspace() holds the separators U+001C to U+001F, too.
bool is_python_space(uint32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

template <class Change>
std::string change_each(std::string_view text, const Change& change) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const uint32_t c = next_char(text, i);
    append_utf8(out, static_cast<uint32_t>(change(static_cast<utf8proc_int32_t>(c))));
  }
  return out;
}

bool is_stripped(std::string_view character, std::optional<std::string_view> characters) {
  if (characters) return characters->find(character) != std::string_view::npos;
  size_t offset = 0;
  return is_python_space(next_char(character, offset));
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace

std::string upper(std::string_view text) { return change_each(text, utf8proc_toupper); }
std::string lower(std::string_view text) { return change_each(text, utf8proc_tolower); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = utf8_length(text[0]);
  return change_each(text.substr(0, first), utf8proc_totitle) + lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string out;
  bool begins = true;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text[i]);
    const std::string_view character = text.substr(i, length);
    i += length;
    if (is_stripped(character, std::nullopt) ||
        std::string_view("-({[<").find(character) != std::string_view::npos) {
      begins = true;
      out.append(character);
    } else {
      out += begins ? upper(character) : lower(character);
      begins = false;
    }
  }
  return out;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> characters, bool left,
                       bool right) {
  while (left && !text.empty()) {
    const size_t length = utf8_length(text[0]);
    if (!is_stripped(text.substr(0, length), characters)) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const size_t last = last_character(text);
    if (!is_stripped(text.substr(last), characters)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most) {
  std::string out;
  size_t done = 0;
  if (from.empty()) {  // before each character and at the end
    for (; most != 0; --most) {
      out.append(to);
      if (done == text.size()) return out;
      const size_t length = utf8_length(text[done]);
      out.append(text.substr(done, length));
      done += length;
    }
    return out.append(text.substr(done));
  }
  for (size_t at = text.find(from); at != std::string_view::npos && most != 0; --most) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
    at = text.find(from, done);
  }
  return out.append(text.substr(done));
}

std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t most) {
  std::vector<std::string> out;
  if (separator) {
    size_t done = 0;
    for (size_t at = text.find(*separator); at != std::string_view::npos && most != 0; --most) {
      out.emplace_back(text.substr(done, at - done));
      done = at + separator->size();
      at = text.find(*separator, done);
    }
    out.emplace_back(text.substr(done));
    return out;
  }
  for (;; --most) {
    text = strip(text, std::nullopt, /*left=*/true, /*right=*/false);
    if (text.empty()) return out;
    size_t end = 0;
    while (end < text.size() && most != 0) {
      size_t next = end;
      if (is_python_space(next_char(text, next))) break;
      end = next;
    }
    if (most == 0) {
      out.emplace_back(text);  // white space at its end stays
      return out;
    }
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

}  // namespace halflin::jinja
