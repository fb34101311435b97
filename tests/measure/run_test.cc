#include "halflin/measure/run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "halflin/base/error.h"

namespace halflin {
namespace {

using nlohmann::json;

std::string refusal(const std::filesystem::path& directory, const json& header) {
  try {
    RunStore(directory, header);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RunStore, KeepsLayersAndRefusesAnotherRun) {
  const auto directory =
      std::filesystem::temp_directory_path() / ("halflin_run_store_" + std::to_string(::getpid()));
  const json header = {{"kind", "analysis"},
                       {"command", "one"},
                       {"threads", 1},
                       {"settings", {{"seed", 0}, {"bootstrap", {{"draws", 100}}}}}};
  {
    const RunStore store(directory, header);
    EXPECT_FALSE(store.layer(3));
    const std::vector<float> delta = {1, 2};
    store.save_layer(3, {{"layer", 3}}, {{"delta", delta}});
    EXPECT_EQ(store.layer(3)->at("layer"), 3);
    const std::vector<size_t> layers = {2, 3};
    EXPECT_EQ(store.finished(layers).size(), 1u);
    const std::filesystem::path tokens = directory / "layers" / "003.safetensors";
    std::filesystem::resize_file(tokens, std::filesystem::file_size(tokens) - 1);
    try {
      store.layer(3);
      ADD_FAILURE() << "damaged tokens were taken for whole";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("003.safetensors: expected what layer 3 was saved"),
                std::string::npos);
    }
  }
  json same = header;
  same["command"] = "another";
  same["threads"] = 2;
  EXPECT_EQ(refusal(directory, same), "");
  json other = header;
  other["settings"]["bootstrap"]["draws"] = 200;
  EXPECT_EQ(refusal(directory, other),
            (directory / "run.json").string() +
                ": holds another run: settings/bootstrap/draws is 100 there and 200 here; choose "
                "another --out");
  json more = header;
  more["second_text"] = "b";
  EXPECT_NE(refusal(directory, more).find("second_text is nothing there"), std::string::npos);
  std::filesystem::remove(directory / "run.json");
  EXPECT_NE(refusal(directory, header).find("run.json: expected in a directory that holds"),
            std::string::npos);
  std::filesystem::remove_all(directory);
}

TEST(Layers, AreParsed) {
  EXPECT_EQ(parse_layers("0,5:7", 9), (std::vector<size_t>{0, 5, 6}));
  EXPECT_EQ(parse_layers(":", 2), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(parse_layers("7:,7", 9), (std::vector<size_t>{7, 8}));
  EXPECT_THROW(parse_layers("", 9), UsageError);
  EXPECT_THROW(parse_layers("3:3", 9), UsageError);
  EXPECT_THROW(parse_layers("-1", 9), UsageError);
  EXPECT_THROW(parse_layers("9", 9), Error);
}

}  // namespace
}  // namespace halflin
