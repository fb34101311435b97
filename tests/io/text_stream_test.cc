#include "halflin/io/text_stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halflin/io/file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using Pieces = std::vector<std::string>;

const std::string kUnknown = "\xef\xbf\xbd";

// What each piece brings forth, and what the end does.
Pieces stream(Utf8Stream utf8, const Pieces& pieces) {
  Pieces out;
  for (const std::string& piece : pieces) out.push_back(utf8.add(piece));
  out.push_back(utf8.finish());
  return out;
}

TEST(Utf8Stream, HoldsBackUnfinishedCharacters) {
  EXPECT_EQ(stream({}, {"a\xc3", "\xa9", "b"}), (Pieces{"a", "\xc3\xa9", "b", ""}));
  EXPECT_EQ(stream({}, {"\xf0", "\x9f", "\x98", "\x80!"}),
            (Pieces{"", "", "", "\xf0\x9f\x98\x80!", ""}));
  EXPECT_EQ(stream({}, {"\xe2\x82"}), (Pieces{"", kUnknown}));
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  // The table of Unicode 15, section 3.9: one replacement for each maximal subpart.
  EXPECT_EQ(
      stream({}, {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"})[0],
      kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + "A");
  EXPECT_EQ(
      stream({}, {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"})[0],
      kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + "A");
  EXPECT_EQ(stream({}, {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"})[0],
            kUnknown + kUnknown + kUnknown + kUnknown + kUnknown + "A" + kUnknown + kUnknown + "B");
  EXPECT_EQ(stream({}, {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"})[0],
            kUnknown + kUnknown + kUnknown + kUnknown + "A");
}

TEST(Utf8Stream, EveryCharacterSurvivesEveryCut) {
  for (const uint32_t c :
       {0x24u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, c);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const Pieces out = stream({}, {text.substr(0, cut), text.substr(cut)});
      EXPECT_EQ(out[0] + out[1] + out[2], text) << c;
      EXPECT_EQ(find_invalid_utf8(out[0]), std::string::npos) << c;
    }
  }
}

Tokenizer tiny(const std::string& name) {
  return Tokenizer::from_json(
      read_file(std::string(HALFLIN_FIXTURES) + "/tokenizers/" + name + ".json"), name);
}

std::string through(const Tokenizer& tokenizer, const std::string& text, bool starts_text) {
  TextStream stream(tokenizer, starts_text);
  std::string out;
  for (const int32_t id : tokenizer.encode(text)) {
    const std::string part = stream.add(id);
    EXPECT_EQ(find_invalid_utf8(part), std::string::npos) << text;
    out += part;
  }
  return out + stream.finish();
}

TEST(TextStream, GivesBackTheText) {
  const std::string text = "caf\xc3\xa9 \xf0\x9f\x98\x80\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd kettle";
  for (const char* name : {"gpt2", "llama3", "smollm", "llama_no_prefix"}) {
    EXPECT_EQ(through(tiny(name), text, true), text) << name;
    EXPECT_EQ(through(tiny(name), text, false), text) << name;
  }
}

TEST(TextStream, DropsSentencepiecesSpaceAtTheStartOfATextOnly) {
  for (const char* name : {"llama_legacy", "metaspace_first_split"}) {
    const Tokenizer tokenizer = tiny(name);
    EXPECT_EQ(through(tokenizer, "the kettle", true), "the kettle") << name;
    EXPECT_EQ(through(tokenizer, "the kettle", false), " the kettle") << name;
  }
}

TEST(TextStream, LeavesSpecialTokensOut) {
  const Tokenizer tokenizer = tiny("added");
  EXPECT_EQ(through(tokenizer, "the<|end|> kettle", true), "the kettle");
}

// The text that comes through piece by piece; '|' marks where a piece ended.
std::string stopped(const std::vector<std::string>& stops, const Pieces& pieces) {
  StopStrings matcher(stops);
  std::string out;
  for (const std::string& piece : pieces) out += matcher.add(piece) + "|";
  return out + matcher.finish() + (matcher.found() ? "<" + *matcher.found() + ">" : "");
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeOne) {
  EXPECT_EQ(stopped({}, {"a", "b"}), "a|b|");
  EXPECT_EQ(stopped({"END"}, {"the E", "ND of"}), "the ||<END>");
  EXPECT_EQ(stopped({"END"}, {"the E", "Nd of"}), "the |ENd of|");
  EXPECT_EQ(stopped({"END"}, {"the E", "N"}), "the ||EN");
  EXPECT_EQ(stopped({"aab"}, {"a", "a", "a", "b"}), "||a||<aab>");
  EXPECT_EQ(stopped({"abab", "bax"}, {"ab", "a", "x"}), "||a|<bax>");
  EXPECT_EQ(stopped({"\n\n"}, {"a\n", "b\n", "\nc"}), "a|\nb||<\n\n>");
}

TEST(StopStrings, TheFirstCompletedWinsWhereverTheBordersAre) {
  EXPECT_EQ(stopped({"abcd", "bc"}, {"xabcd"}), "xa|<bc>");
  EXPECT_EQ(stopped({"abcd", "bc"}, {"xab", "cd"}), "x|a|<bc>");
  EXPECT_EQ(stopped({"bc", "abc"}, {"xabc"}), "x|<abc>");
  EXPECT_EQ(stopped({"abc", "bc"}, {"xa", "bc"}), "x||<abc>");
  EXPECT_EQ(stopped({"a"}, {"bab", "more"}), "b||<a>");
}

TEST(StopStrings, AnyCutGivesTheSameText) {
  const std::string text = "aabaabaaabababbaab";
  const auto whole = [&](const std::vector<std::string>& stops, size_t step) {
    StopStrings matcher(stops);
    std::string out;
    for (size_t i = 0; i < text.size(); i += step) out += matcher.add(text.substr(i, step));
    return out + matcher.finish();
  };
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{"aaab"}, {"abba", "bbaa"}, {"babb", "ab"}, {"bbb"}}) {
    for (size_t step = 1; step <= text.size(); ++step) {
      EXPECT_EQ(whole(stops, step), whole(stops, 1)) << stops[0] << " in steps of " << step;
    }
  }
}

TEST(StopStrings, RefuseEmptyAndInvalidOnes) {
  EXPECT_CONTAINS(error_of([] { StopStrings({"a", ""}); }), "length zero");
  EXPECT_CONTAINS(error_of([] { StopStrings({"\xff"}); }), "UTF-8");
}

}  // namespace
}  // namespace halflin
