// What can be seen of a token without running the model: the surface features of arXiv 2603.03459.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "halflin/analyze/texts.h"

namespace halflin {

// What one token's text looks like, whichever its place. Text is the token's own, without the space
// before a word.
struct TokenSurface {
  double length = 0;           // characters; bytes that are no UTF-8 count one each
  bool number = false;         // digits, at least one, with at most . , between them
  bool punctuation = false;    // ASCII punctuation or symbols only
  bool function_word = false;  // of kFunctionWords, in any case, and the start of a word
  bool capitalised = false;    // an ASCII capital first, and not all capitals
  bool all_caps = false;       // two letters or more, all of them ASCII capitals
  bool starts_word = false;    // a space before it
  bool white_space = false;    // nothing but white space, or a line break in it
  bool non_ascii = false;      // a byte above 127
};
TokenSurface token_surface(std::string_view bytes);

// Articles, pronouns, prepositions, conjunctions, auxiliaries, negations of English, lower case.
bool is_function_word(std::string_view lower_case);

inline constexpr size_t kSurfaceFeatures = 13;
// The columns of surface_features.
inline constexpr std::array<const char*, kSurfaceFeatures> kSurfaceNames = {
    "length",         // characters
    "log_frequency",  // log(1 + occurrences in text A)
    "log_rank",       // log of its rank by falling frequency there, 1 the most frequent
    "position",       // in the window, 0 to 1
    "is_number",     "is_punctuation", "is_function_word", "capitalised",
    "all_caps",      "starts_word",    "white_space",      "non_ascii",
    "repeats",  // the same token came before in the window
};

// Features of each row's input token, [T, 13]. Nothing of it depends on delta.
Matrix<float> surface_features(const Tokenizer& tokenizer, const AnalysisText& text,
                               const std::unordered_map<int32_t, size_t>& frequency);

// Valid UTF-8 for a JSON file: bytes that are none become U+FFFD.
std::string clean_utf8(std::string_view bytes);

}  // namespace halflin
