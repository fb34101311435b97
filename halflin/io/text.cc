#include "halflin/io/text.h"

#include <span>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/sha256.h"
#include "halflin/io/tokenizer.h"

namespace halflin {

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
  return text;
}

}  // namespace halflin
