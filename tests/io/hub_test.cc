#include "halflin/io/hub.h"

#include <cstdlib>
#include <optional>

#include "tests/io/testing.h"

namespace halflin {
namespace {

// Sets the variables that say where the cache is, and puts them back.
struct Hub : testing::Test {
  TemporaryFolder folder;
  std::map<std::string, std::optional<std::string>> before;

  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
    set("HF_HUB_CACHE", folder.path / "hub");
  }
  void TearDown() override {
    for (const auto& [name, value] : before) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }
  static void set(const char* name, const std::filesystem::path& value) {
    ::setenv(name, value.c_str(), 1);
  }
  std::string error(const std::string& model) {
    return error_of([&] { find_model(model); });
  }
  // A cached model with these empty files; returns its snapshot.
  std::filesystem::path cache(const std::string& hub, const std::string& repository,
                              const std::vector<std::string>& files) {
    folder.write(hub + "/" + repository + "/refs/main", "abc123\n");
    for (const std::string& file : files) {
      folder.write(hub + "/" + repository + "/snapshots/abc123/" + file, "x");
    }
    return folder.path / hub / repository / "snapshots" / "abc123";
  }
};

TEST_F(Hub, FindsDirectoriesAndGgufFiles) {
  folder.write("one/config.json", "{}");
  folder.write("one/model.safetensors", "x");
  folder.write("sharded/config.json", "{}");
  folder.write("sharded/model.safetensors.index.json", "{}");
  folder.write("gguf/m.gguf", "x");
  folder.write("both/config.json", "{}");
  folder.write("both/m.gguf", "x");
  const auto find = [&](const char* name) { return find_model((folder.path / name).string()); };
  EXPECT_EQ(find("one").directory, folder.path / "one");
  EXPECT_TRUE(find("one").gguf.empty());
  EXPECT_EQ(find("sharded").directory, folder.path / "sharded");
  EXPECT_EQ(find("gguf/m.gguf").gguf, folder.path / "gguf/m.gguf");
  EXPECT_EQ(find("gguf").gguf, folder.path / "gguf/m.gguf");
  EXPECT_EQ(find("both").gguf, folder.path / "both/m.gguf");
  EXPECT_TRUE(find("both").directory.empty());
}

TEST_F(Hub, SaysWhatADirectoryLacks) {
  folder.write("empty/x", "");
  folder.write("pickle/config.json", "{}");
  folder.write("pickle/pytorch_model.bin", "x");
  folder.write("bare/config.json", "{}");
  folder.write("many/a.gguf", "x");
  folder.write("many/b.gguf", "x");
  folder.write("file.bin", "x");
  const auto error_in = [&](const char* name) { return error((folder.path / name).string()); };
  EXPECT_CONTAINS(error_in("empty"), "expected config.json");
  EXPECT_CONTAINS(error_in("pickle"), "found pytorch_model.bin: convert it to safetensors");
  EXPECT_CONTAINS(error_in("bare"), "expected model.safetensors or model.safetensors.index.json");
  EXPECT_CONTAINS(error_in("many"), "found 2 GGUF files: name one of a.gguf, b.gguf");
  EXPECT_CONTAINS(error_in("file.bin"), "expected a Hugging Face directory or a .gguf file");
  EXPECT_CONTAINS(error_in("none"), "found no such file");
  EXPECT_CONTAINS(error("none.gguf"), "found no such file");
  EXPECT_CONTAINS(error("../none"), "found no such file");
  EXPECT_CONTAINS(error(""), "found nothing");
}

TEST_F(Hub, FindsCachedModels) {
  const auto medium =
      cache("hub", "models--openai-community--gpt2-medium", {"config.json", "model.safetensors"});
  EXPECT_EQ(find_model("openai-community/gpt2-medium").directory, medium);
  EXPECT_EQ(find_model("gpt2-medium").directory, medium);
  const auto plain = cache("hub", "models--gpt2-medium", {"config.json", "model.safetensors"});
  EXPECT_EQ(find_model("gpt2-medium").directory, plain);
  const auto gguf = cache("hub", "models--org--smol-GGUF", {"smol-q4.gguf"});
  EXPECT_EQ(find_model("org/smol-GGUF").gguf, gguf / "smol-q4.gguf");
}

TEST_F(Hub, LooksWhereTheVariablesSay) {
  const std::vector<std::string> files = {"config.json", "model.safetensors"};
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_CONTAINS(error("m"), "none of HF_HUB_CACHE, HF_HOME and HOME is set");
  set("HOME", folder.path / "home");
  const auto home = cache("home/.cache/huggingface/hub", "models--m", files);
  EXPECT_EQ(find_model("m").directory, home);
  set("HF_HOME", folder.path / "hf");
  const auto hf = cache("hf/hub", "models--m", files);
  EXPECT_EQ(find_model("m").directory, hf);
  set("HF_HUB_CACHE", folder.path / "hub");
  const auto hub = cache("hub", "models--m", files);
  EXPECT_EQ(find_model("m").directory, hub);
}

TEST_F(Hub, SaysWhereItLookedAndHowToFetch) {
  EXPECT_CONTAINS(error("openai-community/gpt2"), (folder.path / "hub").string());
  EXPECT_CONTAINS(error("openai-community/gpt2"), "models--openai-community--gpt2");
  EXPECT_CONTAINS(error("openai-community/gpt2"), "hf download openai-community/gpt2");
  cache("hub", "models--half--way", {"config.json"});
  EXPECT_CONTAINS(error("half/way"), "found neither; fetch it with: hf download half/way");
  folder.write("hub/models--no--snapshot/refs/main", "fff");
  EXPECT_CONTAINS(error("no/snapshot"), "expected the snapshot that refs/main names");
  folder.write("hub/models--bad--ref/refs/main", "../../x");
  EXPECT_CONTAINS(error("bad/ref"), "expected the name of a snapshot, found '../../x'");
  cache("hub", "models--a--twin", {"config.json", "model.safetensors"});
  cache("hub", "models--b--twin", {"config.json", "model.safetensors"});
  EXPECT_CONTAINS(error("twin"), "found 2: models--a--twin, models--b--twin");
}

}  // namespace
}  // namespace halflin
