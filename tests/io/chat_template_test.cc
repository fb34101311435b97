#include "halflin/io/chat_template.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "halflin/io/file.h"
#include "halflin/io/jinja/evaluate.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

const json& fixture() {
  static const json document =
      json::parse(read_file(fs::path(HALFLIN_FIXTURES) / "generate" / "chat.json"));
  return document;
}

std::vector<ChatMessage> messages_of(const json& conversation) {
  std::vector<ChatMessage> messages;
  for (const json& turn : conversation) messages.push_back({turn.at("role"), turn.at("content")});
  return messages;
}

// --- whole templates ---

class KnownTemplate : public testing::TestWithParam<std::string> {};

TEST_P(KnownTemplate, WritesWhatTransformersWrites) {
  const json& known = fixture().at("templates").at(GetParam());
  const ChatTemplate chat(known.at("source").get<std::string>(), GetParam());
  size_t i = 0;
  for (const json& conversation : fixture().at("conversations")) {
    for (const bool reply : {false, true}) {
      const json& expected = known.at("results")[i++];
      const auto render = [&] {
        return chat.render(messages_of(conversation), fixture().at("bos"), fixture().at("eos"),
                           reply, 0);
      };
      if (expected.contains("error")) {
        const std::string message = error_of(render);
        // What the template itself says; Jinja's own words differ from ours.
        const auto reason = expected.at("error").get<std::string>();
        if (reason.find("undefined") == std::string::npos &&
            reason.find("has no element") == std::string::npos) {
          EXPECT_CONTAINS(message, reason);
        }
      } else {
        EXPECT_EQ(render(), expected.at("text").get<std::string>()) << conversation.dump();
      }
    }
  }
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : fixture().at("templates").items()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, KnownTemplate, testing::ValuesIn(known_names()),
                         [](const auto& info) { return info.param; });

// --- the language ---

jinja::Value value_of(const jinja::Place& place, const json& document) {
  if (document.is_null()) return jinja::None{};
  if (document.is_boolean()) return document.get<bool>();
  if (document.is_number_integer()) return document.get<int64_t>();
  if (document.is_number()) return document.get<double>();
  if (document.is_string()) return document.get<std::string>();
  if (document.is_array()) {
    jinja::List list;
    for (const json& element : document) list.push_back(value_of(place, element));
    return make_list(place, std::move(list));
  }
  jinja::Dict dict;
  for (const auto& [key, member] : document.items()) {
    dict.emplace_back(key, value_of(place, member));
  }
  return make_dict(place, std::move(dict));
}

std::string evaluate(const std::string& source, std::time_t now = 0) {
  static const std::string file = "test";
  size_t work = SIZE_MAX;
  std::map<std::string, jinja::Value> values;
  for (const auto& [name, value] : fixture().at("values").items()) {
    values[name] = value_of({file, 1, work}, value);
  }
  return jinja::evaluate(jinja::parse(source, file), file, values, now);
}

TEST(Jinja, GivesWhatJinjaGives) {
  for (const json& snippet : fixture().at("snippets")) {
    const auto source = snippet.at("source").get<std::string>();
    std::string text;
    try {
      text = evaluate(source);
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(text, snippet.at("text").get<std::string>()) << source;
  }
}

TEST(Jinja, NamesWhatItDoesNotSupport) {
  const std::vector<std::array<std::string, 2>> cases = {
      {"{% include 'x' %}", "line 1: the statement 'include' is not supported"},
      {"a\n{% extends 'x' %}", "line 2: the statement 'extends'"},
      {"{% call m() %}{% endcall %}", "the statement 'call'"},
      {"{% filter upper %}x{% endfilter %}", "the statement 'filter'"},
      {"{% for x in y recursive %}{% endfor %}", "'recursive' loops are not supported"},
      {"{% set x | upper %}a{% endset %}", "a filter on a 'set' block is not supported"},
      {"{{ 2 ** 3 }}", "the operator '**' is not supported"},
      {"{{ f(*list) }}", "'*' before an argument is not supported"},
      {"\n\n{{ 'a' | center(5) }}", "line 3: the filter 'center' is not supported"},
      {"{{ 'a' | trim(x=1) }}", "filter 'trim': the argument 'x' is not supported"},
      {"{{ 'a' is sameas 'b' }}", "the test 'sameas' is not supported"},
      {"{{ 'a'.zfill(3) }}", "the method 'zfill' of a string is not supported"},
      {"{{ list.append(1) }}", "the method 'append' of a list is not supported"},
      {"{{ cycler('a') }}", "the function 'cycler' is not supported"},
      {"{{ '%s' % 'a' }}", "'%' of string and string is not supported"},
      {"{{ {1: 2} }}", "keys of a dict other than strings are not supported"},
      {"{{ dict | tojson(sort_keys=true) }}", "the argument 'sort_keys' is not supported"},
      {"{{ '\\N{DASH}' }}", "the escape '\\N' is not supported"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_CONTAINS(error_of([&text = source] { evaluate(text); }), message);
  }
}

TEST(Jinja, SaysWhatIsWrong) {
  const std::vector<std::array<std::string, 2>> cases = {
      {"{{ 'a' ", "a tag that is not closed"},
      {"{# a", "a comment that is not closed"},
      {"{% raw %}a", "a raw block that is not closed"},
      {"{{ 'a }}", "a string that is not closed"},
      {"{% if yes %}a", "expected {% endif %}, found the end"},
      {"a\n{% endif %}", "line 2: 'endif' closes nothing here"},
      {"{% for x in list %}{% endif %}", "'endif' closes nothing here"},
      {"{{ }}", "expected an expression, found '}}'"},
      {"{{ 1 + }}", "expected an expression"},
      {"{{ (1 }}", "expected ')'"},
      {"{{ 1] }}", "']' closes nothing"},
      {"{{ a b }}", "expected '}}', found 'b'"},
      {"{% break %}", "'break' outside of a loop"},
      {"{{ $x }}", "found '$'"},
      {"{{ 99999999999999999999 }}", "too large"},
      {"{{ 01 }}", "begins with 0"},
      {"{{ '\\ud800' }}", "is no character"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "parameter 'b' needs a default"},
      {"{{ missing.x }}", "'missing' is undefined"},
      {"{{ dict.x.y }}", "'x' is undefined"},
      {"{{ 'a' + 1 }}", "'+' of string and integer"},
      {"{{ missing + 'a' }}", "'missing' is undefined"},
      {"{{ 1 // 0 }}", "a division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ 'a' < 1 }}", "cannot be compared"},
      {"{% for x in 3 %}{% endfor %}", "integer has no elements"},
      {"{% set a, b = [1] %}", "expected 2 values"},
      {"{% set n.x = 1 %}", "expected a namespace"},
      {"{{ range(1000000) }}", "at most 100000"},
      {"{{ range(0, 5, 0) }}", "a step of 0"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "at most 1 arguments"},
      {"{{ raise_exception('told\nyou') }}", "does not take these messages: told"},
  };
  for (const auto& [source, message] : cases) {
    try {
      evaluate(source);
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_CONTAINS(error.what(), message);
    }
  }
}

std::string repeat(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

// Each would take the machine's memory, its stack, or forever.
TEST(Jinja, BoundsWhatATemplateMayTake) {
  const std::string bounds = "does not come to an end within its bounds";
  const std::vector<std::array<std::string, 2>> cases = {
      {"{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}",
       bounds},
      {"{% set ns = namespace(s='aaaaaaaa') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}"
       "{% endfor %}",
       bounds},
      {"{{ 'a' * 9000000000000000000 }}", bounds},
      {"{{ ('a' * 1000000).replace('', 'a' * 1000000) }}", bounds},
      {"{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = ns.l + ns.l %}"
       "{% endfor %}",
       bounds},
      // 2^20 leaves, few lists.
      {"{% set ns = namespace(l=[1]) %}{% for a in range(22) %}{% set ns.l = [ns.l, ns.l] %}"
       "{% endfor %}{{ ns.l }}",
       bounds},
      {"{% set ns = namespace(l=[1]) %}{% for a in range(22) %}{% set ns.l = [ns.l, ns.l] %}"
       "{% endfor %}{{ ns.l == ns.l }}",
       bounds},
      {"{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = [ns.l] %}{% endfor %}",
       "more than 24 deep"},
      {"{% set ns = namespace() %}{% set ns.x = ns %}", "a namespace inside a namespace"},
      {"{% set ns = namespace() %}{% set ns.x = [ns] %}", "a namespace inside a list or dict"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "goes too deep"},
      {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}", "deep in one another"},
      {"{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}", "deep in one another"},
      {"{{ " + repeat("not ", 5000) + "1 }}", "deep in one another"},
      {"{{ " + repeat("- ", 5000) + "1 }}", "deep in one another"},
      {"{{ 1" + repeat(" + 1", 5000) + " }}", "operations deep"},
      {"{{ 'a'" + repeat(" | trim", 5000) + " }}", "operations deep"},
      {"{{ list" + repeat("[0]", 5000) + " }}", "operations deep"},
      {"{{ 1" + repeat(" if 1 else 1", 5000) + " }}", "deep in one another"},
      {repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000), "deep in one another"},
      {repeat("a", (1 << 20) + 1), "at most 1048576 bytes"},
      {"{{ list | tojson(indent=1000000) }}", "an indent from 0 to 64"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_CONTAINS(error_of([&text = source] { evaluate(text); }), message);
  }
  // Long is not deep.
  EXPECT_EQ(evaluate(repeat("{% if 1 %}a{% endif %}", 5000)).size(), 5000u);
  EXPECT_EQ(evaluate("{{ 'a'" + repeat(" ~ 'a'", 90) + " }}").size(), 91u);
}

TEST(Jinja, TakesUtf8Alone) {
  EXPECT_CONTAINS(error_of([] { evaluate("caf\xe9"); }), "test: expected UTF-8");
  const ChatTemplate chat("{{ messages[0].content }}", "chat");
  const std::vector<ChatMessage> messages = {{"user", "a\xff"}};
  EXPECT_CONTAINS(error_of([&] { chat.render(messages, "", "", true, 0); }), "byte offset 1");
}

TEST(Jinja, WritesTheDate) {
  const char* zone = std::getenv("TZ");
  const std::string before = zone == nullptr ? "" : zone;
  setenv("TZ", "UTC0", 1);
  tzset();
  EXPECT_EQ(evaluate("{{ strftime_now('%d %b %Y') }}", 1700000000), "14 Nov 2023");
  EXPECT_EQ(evaluate("{% if strftime_now is defined %}{{ strftime_now('') }}x{% endif %}"), "x");
  if (zone == nullptr) {
    unsetenv("TZ");
  } else {
    setenv("TZ", before.c_str(), 1);
  }
  tzset();
}

// --- where templates are found ---

TEST(ChatTemplateFiles, AreFoundWhereHuggingFaceAndGgufKeepThem) {
  const TemporaryFolder folder;
  const std::vector<ChatMessage> messages = {{"user", "hi"}};
  ModelFiles files;
  files.directory = folder.path;
  const auto rendered = [&](const nlohmann::json& metadata = {}) -> std::string {
    const std::optional<ChatTemplate> chat = read_chat_template(files, metadata);
    return chat ? chat->render(messages, "B", "E", true, 0) : "none";
  };
  EXPECT_EQ(rendered(), "none");
  folder.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(rendered(), "none");
  folder.write("tokenizer_config.json", R"({"chat_template": "{{ bos_token }}{{ eos_token }}"})");
  EXPECT_EQ(rendered(), "BE");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"},
      {"name": "default", "template": "{{ messages[0].content }}"}]})");
  EXPECT_EQ(rendered(), "hi");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "x", "template": "t"}]})");
  EXPECT_CONTAINS(error_of([&] { rendered(); }), "none is named \"default\"");
  folder.write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_CONTAINS(error_of([&] { rendered(); }), "expected a template, found number");
  folder.write("chat_template.jinja", "{{ messages[0].role }}");
  EXPECT_EQ(rendered(), "user");
  folder.write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_CONTAINS(error_of([&] { rendered(); }), "chat_template.jinja: line 1: the statement");
  files.gguf = "model.gguf";
  EXPECT_EQ(rendered(nlohmann::json::object()), "none");
  EXPECT_EQ(rendered({{"tokenizer.chat_template", "{{ messages | length }}"}}), "1");
}

}  // namespace
}  // namespace halflin
