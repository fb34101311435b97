#include "halflin/model/end_tokens.h"

#include <gtest/gtest.h>

#include "halflin/io/file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const fs::path kFixtures = HALFLIN_FIXTURES;

struct EndTokens : testing::Test {
  TemporaryFolder folder;
  Tokenizer tokenizer =
      Tokenizer::from_json(read_file(kFixtures / "tokenizers" / "gpt2.json"), "gpt2");

  // A model whose config.json and generation_config.json name these.
  Ids of(const std::string& config_ids, const std::string& generation_ids) {
    for (const auto& entry : fs::directory_iterator(kFixtures / "models" / "llama_gqa")) {
      fs::copy(entry.path(), folder.path / entry.path().filename(),
               fs::copy_options::overwrite_existing);
    }
    nlohmann::json config = nlohmann::json::parse(read_file(folder.path / "config.json"));
    config["eos_token_id"] = nlohmann::json::parse(config_ids);
    folder.write("config.json", config.dump());
    if (!generation_ids.empty()) {
      folder.write("generation_config.json", R"({"eos_token_id": )" + generation_ids + "}");
    }
    return end_tokens(read_checkpoint(folder.path.string()), tokenizer);
  }
};

TEST_F(EndTokens, AreThoseOfBothConfigurations) {
  EXPECT_EQ(of("null", ""), Ids{});
  EXPECT_EQ(of("5", "[7, 2]"), (Ids{2, 5, 7}));
  EXPECT_EQ(of("[5, 5, 1]", "5"), (Ids{1, 5}));
}

TEST_F(EndTokens, BeyondTheVocabularyAreLeftOut) { EXPECT_EQ(of("[50256, -1]", "3"), Ids{3}); }

TEST_F(EndTokens, MustBeIds) {
  EXPECT_CONTAINS(error_of([&] { of("\"</s>\"", ""); }), "config.json: eos_token_id");
  EXPECT_CONTAINS(error_of([&] { of("null", "[1.5]"); }), "generation_config.json: eos_token_id");
}

TEST_F(EndTokens, OfGgufAreInItsMetadata) {
  Checkpoint checkpoint =
      read_checkpoint((kFixtures / "models" / "gpt2_gguf" / "model.gguf").string());
  checkpoint.file.metadata["tokenizer.ggml.eos_token_id"] = 4;
  checkpoint.file.metadata["tokenizer.ggml.eot_token_id"] = 2;
  EXPECT_EQ(end_tokens(checkpoint, tokenizer), (Ids{2, 4}));
}

}  // namespace
}  // namespace halflin
