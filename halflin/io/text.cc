#include "halflin/io/text.h"

#include <span>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/sha256.h"
#include "halflin/io/tokenizer.h"

namespace halflin {

std::string with_plain_newlines(std::string text) {
  size_t to = 0;
  for (size_t from = 0; from < text.size(); ++from) {
    if (text[from] != '\r') {
      text[to++] = text[from];
    } else {
      text[to++] = '\n';
      if (from + 1 < text.size() && text[from + 1] == '\n') ++from;
    }
  }
  text.resize(to);
  return text;
}

Text read_text(const std::filesystem::path& path) {
  Text text;
  text.path = path.string();
  text.bytes = read_file(path);
  if (text.bytes.empty()) fail("{}: expected UTF-8 text, found an empty file", text.path);
  const size_t bad = find_invalid_utf8(text.bytes);
  if (bad != std::string::npos) {
    fail("{}: byte offset {}: expected UTF-8, found byte 0x{:02x}", text.path, bad,
         static_cast<unsigned char>(text.bytes[bad]));
  }
  text.sha256 = sha256_hex(std::as_bytes(std::span(text.bytes)));
  text.bytes = with_plain_newlines(std::move(text.bytes));
  return text;
}

}  // namespace halflin
