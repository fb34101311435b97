#include "halflin/io/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/regex.h"
#include "halflin/io/sha256.h"
#include "halflin/io/tensor_file.h"
#include "halflin/io/tokenizer_export.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kTokenizers = fs::path(HALFLIN_FIXTURES) / "tokenizers";
const fs::path kVocabularies = fs::path(HALFLIN_SHARED) / "data" / "vocab";

const json& cases() {
  static const json document = json::parse(read_file(kTokenizers / "cases.json"));
  return document;
}

Tokenizer load(const std::string& name) {
  return Tokenizer::from_json(read_file(kTokenizers / (name + ".json")), name);
}

// Every tiny tokenizer gives Hugging Face's ids and text on every case.
class TinyTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(TinyTokenizer, EncodesAndDecodesAsHuggingFace) {
  const Tokenizer tokenizer = load(GetParam());
  const json& expected = cases().at("tokenizers").at(GetParam());
  const json& texts = cases().at("texts");
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = expected.at("ids")[i].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text), ids) << "case " << i << ": " << text;
    const auto decoded = expected.at("decoded")[i].get<std::string>();
    const std::string ours = tokenizer.decode(ids);
    if (find_invalid_utf8(ours) == std::string::npos) {
      EXPECT_EQ(ours, decoded) << "case " << i << ": " << text;
    } else {
      EXPECT_NE(decoded.find("\xef\xbf\xbd"), std::string::npos) << "case " << i << ": " << text;
    }
  }
}

std::vector<std::string> tiny_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : cases().at("tokenizers").items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, TinyTokenizer, testing::ValuesIn(tiny_names()),
                         [](const auto& info) { return info.param; });

// Real vocabularies, from GGUF metadata.
class RealTokenizer : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fs::path path = kVocabularies / (GetParam() + ".gguf");
    if (GetParam() == "llama3") path = kVocabularies / "gpt-2.gguf";
    if (GetParam() == "smollm2") {
      const char* named = std::getenv("HALFLIN_SMOLLM2");
      const char* home = std::getenv("HOME");
      path = named != nullptr ? fs::path(named)
                              : fs::path(home == nullptr ? "" : home) /
                                    ".cache/halflin/SmolLM2-135M-Instruct.Q4_1.gguf";
    }
    if (!fs::exists(kVocabularies) || !fs::exists(path)) {
      GTEST_SKIP() << "needs " << path << " and the texts beside " << kVocabularies;
    }
    json metadata = open_gguf(path).metadata;
    // GPT-2's vocabulary under Llama 3's rules.
    if (GetParam() == "llama3") metadata["tokenizer.ggml.pre"] = "llama-bpe";
    tokenizer_.emplace(Tokenizer::from_gguf(metadata, path.string()));
    metadata_ = std::move(metadata);
  }

  void expect(const std::string& what, const std::vector<std::string>& texts) {
    std::vector<int32_t> ids;
    for (const std::string& text : texts) {
      const std::vector<int32_t> more = tokenizer_->encode(text);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    static const json real = json::parse(read_file(kTokenizers / "real.json"));
    const json& expected = real.at(GetParam()).at(what);
    EXPECT_EQ(ids.size(), expected.at("count").get<size_t>()) << what;
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(ids))), expected.at("sha256").get<std::string>())
        << what;
  }

  std::optional<Tokenizer> tokenizer_;
  json metadata_;
};

// The same tokenizer through the files of a Hugging Face directory.
Tokenizer exported(const json& metadata) {
  const TokenizerFiles files = export_tokenizer(metadata, "m.gguf");
  const TemporaryFolder folder;
  folder.write("tokenizer.json", files.tokenizer.dump());
  folder.write("tokenizer_config.json", files.tokenizer_config.dump());
  return Tokenizer::from_directory(folder.path);
}

TEST_P(RealTokenizer, GivesTheSameIdsWhenExported) {
  const Tokenizer again = exported(metadata_);
  std::string text = read_file(kVocabularies.parent_path() / "wikitext/wiki.test.raw");
  text.resize(text.rfind('\n', 200000));
  const std::vector<int32_t> ids = tokenizer_->encode(text);
  EXPECT_EQ(again.encode(text), ids);
  EXPECT_EQ(again.decode(ids), tokenizer_->decode(ids));
  const std::string cases = read_file(kVocabularies / "gpt-2.inp");
  EXPECT_EQ(again.encode(cases), tokenizer_->encode(cases));
  EXPECT_EQ(again.eos(), tokenizer_->eos());
  EXPECT_EQ(again.added_bos(), tokenizer_->added_bos());
  EXPECT_EQ(again.size(), tokenizer_->size());
}

std::vector<std::string> split_cases(const std::string& text) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos;
       end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
  return parts;
}

TEST_P(RealTokenizer, GivesHuggingFaceIds) {
  const fs::path data = kVocabularies.parent_path();
  const std::string wikitext = read_file(data / "wikitext/wiki.test.raw");
  expect("wikitext", {wikitext});
  std::vector<std::string> lambada;
  std::istringstream lines(read_file(data / "lambada/lambada_test.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    lambada.push_back(json::parse(line).at("text"));
  }
  expect("lambada", lambada);
  const std::vector<std::string> inputs = split_cases(read_file(kVocabularies / "gpt-2.inp"));
  expect("cases", inputs);

  // What llama.cpp gives for its own cases.
  const fs::path outputs = kVocabularies / (GetParam() + ".out");
  if (!fs::exists(outputs)) return;
  std::istringstream expected(read_file(outputs));
  for (const std::string& input : inputs) {
    std::string line;
    ASSERT_TRUE(std::getline(expected, line));
    std::istringstream numbers(line);
    std::vector<int32_t> ids;
    for (int32_t id = 0; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(tokenizer_->encode(input), ids) << input;
  }
}

TEST_P(RealTokenizer, RoundTrips) {
  const std::string text = read_file(kVocabularies.parent_path() / "wikitext/wiki.test.raw");
  EXPECT_TRUE(tokenizer_->decode(tokenizer_->encode(text)) == text);
}

INSTANTIATE_TEST_SUITE_P(All, RealTokenizer,
                         testing::Values("gpt-2", "gpt-neox", "llama-spm", "llama3", "smollm2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Tokenizer, RefusesInvalidUtf8) {
  const Tokenizer tokenizer = load("gpt2");
  const auto error = [&](std::string_view text) {
    return error_of([&] { tokenizer.encode(text); });
  };
  EXPECT_EQ(error("abc\xff"), "text is not UTF-8: byte 3 is 0xff");
  EXPECT_EQ(error("0123456789\xc3"), "text is not UTF-8: byte 10 is 0xc3");
  EXPECT_EQ(error("\xed\xa0\x80"), "text is not UTF-8: byte 0 is 0xed");      // surrogate
  EXPECT_EQ(error("\xc0\x80"), "text is not UTF-8: byte 0 is 0xc0");          // overlong
  EXPECT_EQ(error("\xf4\x90\x80\x80"), "text is not UTF-8: byte 0 is 0xf4");  // > U+10FFFF
}

TEST(Tokenizer, DecodesPartsOfCharacters) {
  const Tokenizer tokenizer = load("gpt2");
  const std::string text = "\xf0\x9f\x98\x80";
  const std::vector<int32_t> ids = tokenizer.encode(text);
  ASSERT_GT(ids.size(), 1u);
  std::string joined;
  for (const int32_t id : ids) joined += tokenizer.token_bytes(id);
  EXPECT_EQ(joined, text);
  EXPECT_EQ(tokenizer.decode(std::span(ids).first(1)), tokenizer.token_bytes(ids[0]));
  EXPECT_EQ(load("llama_legacy").token_bytes(3 + 0x41), "A");
}

TEST(Tokenizer, RefusesUnknownIds) {
  const Tokenizer tokenizer = load("gpt2");
  const auto highest = static_cast<int32_t>(tokenizer.size()) - 1;
  EXPECT_NO_THROW(tokenizer.token_bytes(highest));
  EXPECT_THROW(tokenizer.token_bytes(highest + 1), Error);
  EXPECT_THROW(tokenizer.token_bytes(-1), Error);
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{0, 1 << 30}), Error);
}

TEST(Tokenizer, TellsWhatItIs) {
  EXPECT_EQ(load("gpt2").description(), "byte-level BPE, 500 tokens, ByteLevel pre-tokeniser");
  EXPECT_EQ(load("smollm").description(),
            "byte-level BPE, 500 tokens, Digits+ByteLevel pre-tokeniser");
  const Tokenizer added = load("added");
  EXPECT_TRUE(added.is_special(added.encode("<|end|>").at(0)));
  EXPECT_FALSE(added.is_special(added.encode("<norm>").at(0)));
  EXPECT_FALSE(added.is_special(0));
  EXPECT_FALSE(added.is_special(-1));
}

TEST(Tokenizer, KnowsItsBos) {
  const Tokenizer llama3 = load("llama3");
  ASSERT_TRUE(llama3.added_bos());
  EXPECT_EQ(llama3.token_bytes(*llama3.added_bos()), "<|begin|>");
  EXPECT_FALSE(load("gpt2").added_bos());

  const fs::path directory = fs::path(testing::TempDir()) / "tokenizer_with_config";
  fs::create_directories(directory);
  fs::copy_file(kTokenizers / "llama_legacy.json", directory / "tokenizer.json",
                fs::copy_options::overwrite_existing);
  const auto with_config = [&](const std::string& text) {
    write_file_atomically(directory / "tokenizer_config.json", text);
    return Tokenizer::from_directory(directory);
  };
  Tokenizer tokenizer = with_config(
      R"({"add_bos_token": true, "bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_EQ(tokenizer.added_bos(), 1);
  tokenizer = with_config(R"({"add_bos_token": false, "bos_token": "<s>", "eos_token": null})");
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_FALSE(tokenizer.eos());
  EXPECT_FALSE(tokenizer.added_bos());
  EXPECT_THROW(with_config(R"({"add_bos_token": true})"), Error);
  EXPECT_THROW(with_config("[]"), Error);
  fs::remove_all(directory);
  EXPECT_THROW(Tokenizer::from_directory(directory), Error);
}

// A long text without a space is one piece, and still takes a moment only.
TEST(Tokenizer, MergesLongPiecesFast) {
  std::string text;
  for (int i = 0; text.size() < 400'000; ++i) text += i % 3 == 0 ? "kettle" : "tea";
  for (const char* name : {"gpt2", "llama_legacy"}) {
    const Tokenizer tokenizer = load(name);
    EXPECT_TRUE(tokenizer.decode(tokenizer.encode(text)) == text) << name;
  }
}

// One change to a small valid file, and the message it must give.
json small_file() {
  return json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<end>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}
  })");
}

TEST(TokenizerJson, SmallFileIsValid) {
  const Tokenizer tokenizer = Tokenizer::from_json(small_file().dump(), "t.json");
  EXPECT_EQ(tokenizer.encode("ab ba<end>"), (std::vector<int32_t>{2, 3, 1, 0, 4}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{2, 3, 4}), "ab <end>");
}

TEST(TokenizerJson, SaysWhatIsWrong) {
  const struct {
    const char* pointer;
    const char* value;
    const char* message;
  } changes[] = {
      {"/model", "null", "t.json: model is missing"},
      {"/model/type", R"("Unigram")", "t.json: model.type: 'Unigram' is not supported"},
      {"/model/type", "3", "t.json: model.type: expected a string, found number"},
      {"/model/vocab", "null", "t.json: model.vocab: expected an object, found null"},
      {"/model/vocab/a", R"("x")", "t.json: model.vocab: the id of 'a' is string, not an integer"},
      {"/model/vocab/a", "-1",
       "t.json: model.vocab: token 'a' has id -1, but 4 tokens should have "
       "ids below 65600"},
      {"/model/vocab/a", "4000000000",
       "t.json: model.vocab: token 'a' has id 4000000000, but 4 tokens should have ids below "
       "65600"},
      {"/model/vocab/a", "18446744073709551615",
       "t.json: model.vocab: 18446744073709551615 is too large"},
      {"/model/vocab/a", "1", "t.json: model.vocab: tokens 'a' and 'b' both have id 1"},
      {"/model/merges", "null", "t.json: model.merges: expected an array, found null"},
      {"/model/merges/0", R"("a c")",
       "t.json: model.merges[0]: token 'c' is not in the vocabulary"},
      {"/model/merges/0", R"("b a")",
       "t.json: model.merges[0]: token 'ba' is not in the vocabulary"},
      {"/model/merges/0", R"("ab")",
       "t.json: model.merges[0]: expected two tokens with a space between, found 'ab'"},
      {"/model/merges/0", R"(["a"])", "t.json: model.merges[0]: expected a string or two strings"},
      {"/model/merges/0", R"(["a", 1])",
       "t.json: model.merges[0][1]: expected a string, found number"},
      {"/model/dropout", "0.1",
       "t.json: model.dropout: a random dropout of merges is not supported"},
      {"/model/unk_token", R"("?")", "t.json: model.unk_token: '?' is not in the vocabulary"},
      {"/model/end_of_word_suffix", R"("</w>")",
       "t.json: model.end_of_word_suffix: '</w>' is not supported"},
      {"/model/byte_fallback", "1",
       "t.json: model.byte_fallback: expected true or false, found number"},
      {"/normalizer", R"({"type": "Lowercase"})",
       "t.json: normalizer: 'Lowercase' is not supported"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {}]})",
       "t.json: normalizer.normalizers[1].type: expected a string, found null"},
      {"/pre_tokenizer", R"({"type": "Whitespace"})",
       "t.json: pre_tokenizer: 'Whitespace' is not supported"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})",
       "t.json: pre_tokenizer.pattern: pattern '(a' does not compile: missing closing parenthesis"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"})",
       "t.json: pre_tokenizer.pattern: pattern '[a&&b]': && in a class is not supported"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Eaten"})",
       "t.json: pre_tokenizer.behavior: 'Eaten' is not supported"},
      {"/decoder", R"({"type": "WordPiece"})", "t.json: decoder: 'WordPiece' is not supported"},
      {"/added_tokens/0/id", "2000000000",
       "t.json: added_tokens[0]: id 2000000000 of '<end>' is far above the vocabulary's 4 tokens"},
      {"/added_tokens/0/id", "-4", "t.json: added_tokens[0].id: -4 is no token id"},
      {"/added_tokens/0/id", "2",
       "t.json: added_tokens[0]: '<end>' has id 2, which is 'ab' in the "
       "vocabulary"},
      {"/added_tokens/0/content", R"("ab")",
       "t.json: added_tokens[0]: 'ab' has id 4, but 2 in the vocabulary"},
      {"/added_tokens", "{}", "t.json: added_tokens: expected an array, found object"},
      {"/post_processor", R"({"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [77]}},
                              "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]})",
       "t.json: the BOS id 77 is not below the 5 ids of the vocabulary"},
  };
  for (const auto& change : changes) {
    json file = small_file();
    file[json::json_pointer(change.pointer)] = json::parse(change.value);
    EXPECT_EQ(error_of([&] { Tokenizer::from_json(file.dump(), "t.json"); }), change.message);
  }
  for (const char* text : {"", "{", "[]", "null", "\"\xff\""}) {
    EXPECT_THROW(Tokenizer::from_json(text, "t.json"), Error) << text;
  }
}

TEST(TokenizerJson, StopsRunawayPatterns) {
  json file = small_file();
  file["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "^(a+)+$"}, "behavior": "Isolated"},
    {"type": "ByteLevel", "use_regex": false}]})");
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_NE(error_of([&] { tokenizer.encode(std::string(60, 'a') + "b"); }).find("t.json"),
            std::string::npos);
}

TEST(TokenizerJson, StopsGrowingReplacements) {
  json file = small_file();
  const json twice =
      json::parse(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})");
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<json>(60, twice)}};
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_THROW(tokenizer.encode("a"), Error);
}

TEST(TokenizerGguf, SaysWhatIsWrong) {
  const auto metadata = [] {
    return json::parse(R"({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
      "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"], "tokenizer.ggml.merges": ["a b"],
      "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.eos_token_id": 3})");
  };
  const Tokenizer tokenizer = Tokenizer::from_gguf(metadata(), "m.gguf");
  EXPECT_EQ(tokenizer.encode("abb<end>"), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(tokenizer.description(), "byte-level BPE, 4 tokens, smollm pre-tokeniser");
  EXPECT_EQ(tokenizer.eos(), 3);
  const Tokenizer again = exported(metadata());
  EXPECT_EQ(again.encode("abb<end>"), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(again.eos(), 3);
  const struct {
    const char* key;
    const char* value;
    const char* message;
  } changes[] = {
      {"model", R"("bert")",
       "m.gguf: tokenizer.ggml.model 'bert' is not supported; known are gpt2, llama"},
      {"pre", R"("tekken")",
       "m.gguf: tokenizer.ggml.pre 'tekken' is not supported; known are default, gpt-2, phi-2, "
       "gpt-neox, mpt, olmo, smollm, starcoder, refact, llama-bpe, llama3, llama-v3, qwen2"},
      {"tokens", "7", "m.gguf: tokenizer.ggml.tokens: expected an array, found number"},
      {"tokens", "[1]", "m.gguf: tokenizer.ggml.tokens[0]: expected a string, found number"},
      {"tokens", R"(["a", "a"])", "m.gguf: tokenizer.ggml.tokens: ids 0 and 1 are both token 'a'"},
      {"merges", R"(["a  b"])",
       "m.gguf: tokenizer.ggml.merges[0]: token ' b' is not in the vocabulary"},
      {"merges", R"([""])",
       "m.gguf: tokenizer.ggml.merges[0]: expected two tokens with a space between, found ''"},
      {"token_type", "[1]", "m.gguf: tokenizer.ggml.token_type has 1 entries for 4 tokens"},
      {"eos_token_id", "4", "m.gguf: the EOS id 4 is not below the 4 ids of the vocabulary"},
      {"eos_token_id", "-1", "m.gguf: tokenizer.ggml.eos_token_id: -1 is no token id"},
      {"add_bos_token", "1",
       "m.gguf: tokenizer.ggml.add_bos_token: expected true or false, found number"},
  };
  for (const auto& change : changes) {
    json changed = metadata();
    changed[std::string("tokenizer.ggml.") + change.key] = json::parse(change.value);
    EXPECT_EQ(error_of([&] { Tokenizer::from_gguf(changed, "m.gguf"); }), change.message);
  }
  EXPECT_EQ(error_of([] { Tokenizer::from_gguf(json(), "m.gguf"); }),
            "m.gguf: tokenizer.ggml.model is missing");
  json spm = metadata();
  spm["tokenizer.ggml.model"] = "llama";
  EXPECT_EQ(error_of([&] { Tokenizer::from_gguf(spm, "m.gguf"); }),
            "m.gguf: tokenizer.ggml.scores is missing");
  spm["tokenizer.ggml.scores"] = {0.0, 0.0, -1.0, std::nan("")};
  EXPECT_EQ(error_of([&] { Tokenizer::from_gguf(spm, "m.gguf"); }),
            "m.gguf: tokenizer.ggml.scores[3]: expected a finite number");
}

TEST(TokenizerGguf, ReadsWhatFamiliesLeaveUnsaid) {
  // GPT-NeoX composes characters; converters' filler tokens are not found in text.
  const json neox =
      json::parse(R"({"general.architecture": "gptneox", "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["Ã", "©", "Ã©", "[", "P", "A", "D", "7", "[PAD8]", "]", "8", "  "],
    "tokenizer.ggml.merges": ["Ã ©"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 4]})");
  const Tokenizer tokenizer = Tokenizer::from_gguf(neox, "m.gguf");
  EXPECT_EQ(tokenizer.encode("e\xcc\x81"), (std::vector<int32_t>{2}));
  EXPECT_EQ(tokenizer.encode("[PAD8]"), (std::vector<int32_t>{3, 4, 5, 6, 10, 9}));
  EXPECT_EQ(tokenizer.encode("A  D"), (std::vector<int32_t>{5, 11, 6}));
  EXPECT_FALSE(tokenizer.added_bos());

  // Sentencepiece adds a BOS and a leading space unless told otherwise; the best score merges
  // first.
  json llama = json::parse(R"({"tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab", "<0xC3>", "<0xA9>"],
    "tokenizer.ggml.scores": [0, 0, -5, -4, -3, -2, -1, 0, 0],
    "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 6, 6],
    "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1})");
  const Tokenizer spaced = Tokenizer::from_gguf(llama, "m.gguf");
  EXPECT_EQ(spaced.encode("ab a"), (std::vector<int32_t>{2, 6, 5}));
  EXPECT_EQ(spaced.encode("\xc3\xa9xy<s>"), (std::vector<int32_t>{2, 7, 8, 0, 1}));
  EXPECT_EQ(spaced.decode(spaced.encode("ab a")), "ab a");
  EXPECT_EQ(spaced.added_bos(), 1);
  llama["tokenizer.ggml.add_space_prefix"] = false;
  llama["tokenizer.ggml.add_bos_token"] = false;
  const Tokenizer plain = Tokenizer::from_gguf(llama, "m.gguf");
  EXPECT_EQ(plain.encode("ab a"), (std::vector<int32_t>{6, 5}));
  EXPECT_FALSE(plain.added_bos());
}

TEST(TokenizerRegex, TranslatesOniguruma) {
  EXPECT_EQ(translate_oniguruma(R"( ?[^\s\p{L}]+|\s+(?!\S))"),
            R"( ?[^\p{White_Space}\p{L}]+|\p{White_Space}+(?!\P{White_Space}))");
  EXPECT_EQ(translate_oniguruma(R"(\h[\h]\u00e9\p{N}{1,3}[]a])"),
            R"([0-9a-fA-F][0-9a-fA-F]\x{00e9}\p{N}{1,3}[\]a])");
  EXPECT_EQ(translate_oniguruma(R"([^\r\n\p{L}]?+\p{L}++)"), R"([^\r\n\p{L}]?+\p{L}++)");
  for (const char* pattern :
       {"[a[b]]", "[a&&b]", "a{1,2}+", "(?m:a)", "(*FAIL)", "\\", R"([\W])"}) {
    EXPECT_THROW(translate_oniguruma(pattern), Error) << pattern;
  }
}

}  // namespace
}  // namespace halflin
