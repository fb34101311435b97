#include "halflin/analyze/features.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "halflin/io/utf8.h"

namespace halflin {

namespace {

constexpr std::string_view kFunctionWords[] = {
    "a",        "about",     "above",   "across",  "after",   "against",   "all",    "along",
    "although", "am",        "among",   "an",      "and",     "another",   "any",    "are",
    "around",   "as",        "at",      "be",      "because", "been",      "before", "behind",
    "being",    "below",     "beneath", "beside",  "between", "beyond",    "both",   "but",
    "by",       "can",       "could",   "did",     "do",      "does",      "down",   "during",
    "each",     "either",    "every",   "few",     "for",     "from",      "had",    "has",
    "have",     "having",    "he",      "her",     "hers",    "herself",   "him",    "himself",
    "his",      "how",       "i",       "if",      "in",      "inside",    "into",   "is",
    "it",       "its",       "itself",  "many",    "may",     "me",        "might",  "mine",
    "more",     "most",      "much",    "must",    "my",      "myself",    "near",   "neither",
    "no",       "nor",       "not",     "of",      "off",     "on",        "once",   "one",
    "onto",     "or",        "other",   "our",     "ours",    "ourselves", "out",    "over",
    "own",      "per",       "shall",   "she",     "should",  "since",     "so",     "some",
    "such",     "than",      "that",    "the",     "their",   "theirs",    "them",   "themselves",
    "then",     "there",     "these",   "they",    "this",    "those",     "though", "through",
    "till",     "to",        "toward",  "towards", "under",   "unless",    "until",  "up",
    "upon",     "us",        "was",     "we",      "were",    "what",      "when",   "where",
    "whether",  "which",     "while",   "who",     "whom",    "whose",     "why",    "will",
    "with",     "within",    "without", "would",   "yet",     "you",       "your",   "yours",
    "yourself", "yourselves"};

bool upper(char c) { return c >= 'A' && c <= 'Z'; }
bool lower(char c) { return c >= 'a' && c <= 'z'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool is_function_word(std::string_view lower_case) {
  static const std::set<std::string_view> words(std::begin(kFunctionWords),
                                                std::end(kFunctionWords));
  return words.contains(lower_case);
}

std::string clean_utf8(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const size_t bad = find_invalid_utf8(bytes);
    if (bad == std::string_view::npos) return out += bytes;
    out += bytes.substr(0, bad);
    out += "\xEF\xBF\xBD";
    bytes.remove_prefix(bad + 1);
  }
  return out;
}

TokenSurface token_surface(std::string_view bytes) {
  TokenSurface out;
  out.starts_word = !bytes.empty() && bytes.front() == ' ';
  out.white_space =
      !bytes.empty() && (bytes.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos ||
                         bytes.find('\n') != std::string_view::npos);
  std::string_view word = bytes;
  if (out.starts_word) word.remove_prefix(1);
  const std::string clean = clean_utf8(word);
  for (size_t at = 0; at < clean.size(); ++out.length) next_char(clean, at);
  if (word.empty()) return out;

  size_t digits = 0, marks = 0, capitals = 0, letters = 0;
  std::string folded;
  bool number = true;
  for (const char c : word) {
    out.non_ascii = out.non_ascii || (static_cast<unsigned char>(c) & 0x80) != 0;
    digits += digit(c);
    marks +=
        std::ispunct(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 128;
    capitals += upper(c);
    letters += upper(c) || lower(c);
    number = number && (digit(c) || c == '.' || c == ',');
    folded += upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
  }
  out.number = number && digits > 0;
  out.punctuation = marks == word.size();
  out.all_caps = letters >= 2 && capitals == letters && letters == word.size();
  out.capitalised = upper(word.front()) && !out.all_caps;
  out.function_word = out.starts_word && is_function_word(folded);
  return out;
}

Matrix<float> surface_features(const Tokenizer& tokenizer, const AnalysisText& text,
                               const std::unordered_map<int32_t, size_t>& frequency) {
  std::vector<std::pair<size_t, int32_t>> order;  // falling frequency; of equals, the lower id
  order.reserve(frequency.size());
  for (const auto& [id, count] : frequency) order.emplace_back(count, id);
  std::sort(order.begin(), order.end(), [](const auto& l, const auto& r) {
    return l.first != r.first ? l.first > r.first : l.second < r.second;
  });
  std::unordered_map<int32_t, size_t> rank;
  for (size_t i = 0; i < order.size(); ++i) rank[order[i].second] = i + 1;

  std::unordered_map<int32_t, TokenSurface> surfaces;
  Matrix<float> out(text.rows(), kSurfaceFeatures);
  std::set<int32_t> before;
  for (size_t t = 0; t < text.rows(); ++t) {
    const int32_t id = text.input[t];
    if (text.position[t] == 0) before.clear();
    const auto [found, is_new] = surfaces.try_emplace(id);
    if (is_new) found->second = token_surface(tokenizer.token_bytes(id));
    const TokenSurface& s = found->second;
    const auto count = frequency.find(id);
    const auto place = rank.find(id);
    const auto window = static_cast<double>(text.samples[text.window[t]].batch.rows());
    const double row[kSurfaceFeatures] = {
        s.length,
        std::log1p(count == frequency.end() ? 0.0 : static_cast<double>(count->second)),
        std::log(static_cast<double>(place == rank.end() ? rank.size() + 1 : place->second)),
        static_cast<double>(text.position[t]) / (window - 1),
        s.number ? 1.0 : 0.0,
        s.punctuation ? 1.0 : 0.0,
        s.function_word ? 1.0 : 0.0,
        s.capitalised ? 1.0 : 0.0,
        s.all_caps ? 1.0 : 0.0,
        s.starts_word ? 1.0 : 0.0,
        s.white_space ? 1.0 : 0.0,
        s.non_ascii ? 1.0 : 0.0,
        before.insert(id).second ? 0.0 : 1.0};
    for (size_t j = 0; j < kSurfaceFeatures; ++j) out(t, j) = static_cast<float>(row[j]);
  }
  return out;
}

}  // namespace halflin
