#include "halflin/io/gguf_writer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "halflin/io/file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using nlohmann::json;

TEST(GgufWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path / "a.gguf";
  const GgufMetadata metadata = {{"yes", true},
                                 {"u", uint32_t{4000000000}},
                                 {"i", int32_t{-5}},
                                 {"big", uint64_t{1} << 40},
                                 {"f", 0.1f},
                                 {"text", std::string("h\xc3\xa9\0llo", 7)},
                                 {"texts", std::vector<std::string>{"a", "", "c"}},
                                 {"ints", std::vector<int32_t>{-1, 2}},
                                 {"floats", std::vector<float>{0.5f, -2.f}},
                                 {"none", std::vector<std::string>{}}};
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {0x3f80, 0x4000, 0x4040};
  const std::vector<uint16_t> c = {0x3c00};
  const std::vector<TensorToWrite> tensors = {
      {"a", DType::kF32, {2, 3}, std::as_bytes(std::span(a))},
      {"b", DType::kBF16, {3}, std::as_bytes(std::span(b))},
      {"c", DType::kF16, {1, 1, 1}, std::as_bytes(std::span(c))}};
  write_gguf(path, metadata, tensors);
  const TensorFile file = open_gguf(path);
  const json expected = {{"yes", true},
                         {"u", 4000000000u},
                         {"i", -5},
                         {"big", uint64_t{1} << 40},
                         {"f", 0.1f},
                         {"text", std::string("h\xc3\xa9\0llo", 7)},
                         {"ints", {-1, 2}},
                         {"texts", {"a", "", "c"}},
                         {"floats", {0.5, -2}},
                         {"none", json::array()}};
  EXPECT_EQ(file.metadata, expected);
  ASSERT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.at("a").shape, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(file.at("c").shape, (std::vector<size_t>{1, 1, 1}));
  std::vector<float> read(6);
  read_f32(file.at("a"), 0, read);
  EXPECT_EQ(read, a);
  read.resize(3);
  read_f32(file.at("b"), 0, read);
  EXPECT_EQ(read, (std::vector<float>{1, 2, 3}));
  // And once more from what was read, in the keys' order.
  EXPECT_EQ(typed_metadata(file.metadata, "a").size(), metadata.size());
  write_gguf(folder.path / "b.gguf", typed_metadata(file.metadata, "a"), tensors);
  EXPECT_EQ(open_gguf(folder.path / "b.gguf").metadata, expected);
}

TEST(GgufWriter, EveryFixturesMetadataComesBackByteForByte) {
  const TemporaryFolder folder;
  for (const char* name : {"gpt2_gguf", "llama_gguf", "neox_gguf"}) {
    const TensorFile file =
        open_gguf(std::filesystem::path(HALFLIN_FIXTURES) / "models" / name / "model.gguf");
    std::vector<TensorToWrite> tensors;
    for (const auto& [key, tensor] : file.tensors) {
      tensors.push_back({key, tensor.dtype, tensor.shape, tensor.bytes});
    }
    const std::filesystem::path path = folder.path / "again.gguf";
    write_gguf(path, typed_metadata(file.metadata, name), tensors);
    const TensorFile again = open_gguf(path);
    EXPECT_EQ(again.metadata, file.metadata) << name;
    for (const auto& [key, tensor] : file.tensors) {
      EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), again.at(key).bytes.begin(),
                             again.at(key).bytes.end()))
          << name << " " << key;
    }
  }
}

TEST(GgufWriter, RefusesWhatContradictsItself) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path / "a.gguf";
  const std::vector<float> values(6);
  const auto bytes = std::as_bytes(std::span(values));
  const auto refused = [&](const GgufMetadata& metadata, std::vector<TensorToWrite> tensors) {
    return error_of([&] { write_gguf(path, metadata, tensors); });
  };
  EXPECT_CONTAINS(refused({{"k", true}, {"k", true}}, {}), "key 'k' comes twice");
  EXPECT_CONTAINS(refused({}, {{"t", DType::kF32, {6}, bytes}, {"t", DType::kF32, {6}, bytes}}),
                  "tensor 't' comes twice");
  EXPECT_CONTAINS(refused({}, {{"t", DType::kF32, {5}, bytes}}), "24 bytes for a shape of [5]");
  EXPECT_CONTAINS(refused({}, {{"t", DType::kQ8_0, {24}, bytes}}), "tensor 't'");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_CONTAINS(error_of([] { typed_metadata({{"k", {1, "a"}}}, "f"); }), "f: key 'k'");
  EXPECT_CONTAINS(error_of([] { typed_metadata({{"k", nullptr}}, "f"); }), "of type null");
}

}  // namespace
}  // namespace halflin
