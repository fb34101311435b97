// Token ids into text as they come: whole characters, and nothing that a stop string takes back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/io/tokenizer.h"

namespace halflin {

// Bytes into UTF-8. Bytes that belong to no character become U+FFFD, one for each sequence that
// could have begun a character (Unicode 15, section 3.9, as Python and browsers do).
class Utf8Stream {
 public:
  // The characters that `bytes` completes.
  std::string add(std::string_view bytes);
  // U+FFFD for a character that was never completed, or nothing.
  std::string finish();

 private:
  std::string begun_;  // at most three bytes
};

// Generated ids into text. Special tokens are left out.
class TextStream {
 public:
  // `starts_text`: the ids begin a text of their own (a chat's reply) instead of going on with one,
  // so that the space which a sentencepiece vocabulary puts before a text's first word is dropped.
  TextStream(const Tokenizer& tokenizer, bool starts_text)
      : tokenizer_(tokenizer), at_start_(starts_text) {}

  // The characters that `id` completes; often none or several.
  std::string add(int32_t id);
  std::string finish() { return utf8_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  bool at_start_;
  Utf8Stream utf8_;
};

// Ends a text before the first stop string that it completes (of several completed by the same
// character, the longest), wherever the borders between the pieces are.
class StopStrings {
 public:
  // Throws UsageError on an empty stop string and on one that is not UTF-8.
  explicit StopStrings(std::vector<std::string> stops);

  // The text that is certain now: what may still become a stop string is held back. Nothing once
  // one has been found.
  std::string add(std::string_view text);
  // The text held back, where the text ends without a stop string.
  std::string finish();
  // The stop string that was found.
  const std::optional<std::string>& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> found_;
};

}  // namespace halflin
