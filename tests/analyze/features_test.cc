#include "halflin/analyze/features.h"

#include <gtest/gtest.h>

#include "halflin/io/utf8.h"

namespace halflin {
namespace {

TEST(TokenSurface, SeesWhatATokenLooksLike) {
  const TokenSurface the = token_surface(" The");
  EXPECT_EQ(the.length, 3);
  EXPECT_TRUE(the.function_word && the.capitalised && the.starts_word);
  EXPECT_FALSE(the.all_caps || the.number || the.punctuation || the.white_space || the.non_ascii);
  EXPECT_FALSE(token_surface("the").function_word);  // inside a word, as in "ba|the"
  EXPECT_FALSE(token_surface(" theme").function_word);

  EXPECT_TRUE(token_surface("1").number);
  EXPECT_TRUE(token_surface(" 1,000.5").number);
  EXPECT_FALSE(token_surface(".").number);
  EXPECT_FALSE(token_surface("1st").number);

  EXPECT_TRUE(token_surface(" @-@").punctuation);
  EXPECT_FALSE(token_surface("a.").punctuation);
  EXPECT_FALSE(token_surface("").punctuation);

  EXPECT_TRUE(token_surface(" NATO").all_caps);
  EXPECT_FALSE(token_surface(" NATO").capitalised);
  EXPECT_TRUE(token_surface("I").capitalised);
  EXPECT_FALSE(token_surface("I").all_caps);
  EXPECT_TRUE(token_surface(" McDonald").capitalised);

  EXPECT_TRUE(token_surface(" \n").white_space);
  EXPECT_TRUE(token_surface(".\n").white_space);
  EXPECT_TRUE(token_surface(" ").white_space);
  EXPECT_FALSE(token_surface(" a").white_space);
  EXPECT_EQ(token_surface(" ").length, 0);

  const TokenSurface umlaut = token_surface(
      " \xC3\xBC"
      "ber");
  EXPECT_TRUE(umlaut.non_ascii);
  EXPECT_EQ(umlaut.length, 4);
  EXPECT_EQ(token_surface("\xC3").length, 1);  // half a character
}

TEST(CleanUtf8, ReplacesWhatIsNone) {
  EXPECT_EQ(clean_utf8("plain \xC3\xBC"), "plain \xC3\xBC");
  EXPECT_EQ(clean_utf8("\x80"
                       "a\xC3"),
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD");
  EXPECT_EQ(find_invalid_utf8(clean_utf8("\xF0\x9F\x98 x\xFF")), std::string::npos);
}

}  // namespace
}  // namespace halflin
