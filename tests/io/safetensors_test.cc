#include "halflin/io/file.h"
#include "halflin/io/sha256.h"
#include "halflin/io/tensor_file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

std::string with_header(const std::string& header, size_t data_bytes) {
  return raw<uint64_t>(header.size()) + header + std::string(data_bytes, '\0');
}

std::string error_for(const std::string& header, size_t data_bytes) {
  const std::string file = with_header(header, data_bytes);
  return error_of([&] { parse_safetensors(bytes_of(file), "f"); });
}

const std::string kValid =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("mask":{"dtype":"BOOL","shape":[4],"data_offsets":[24,28]},)"
    R"("b":{"dtype":"BF16","shape":[],"data_offsets":[28,30]}}  )";

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string file = with_header(kValid, 30);
  const TensorFile opened = parse_safetensors(bytes_of(file), "f");
  ASSERT_EQ(opened.tensors.size(), 2u);
  const TensorInfo& a = opened.at("a");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_EQ(a.shape, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(a.elements(), 6u);
  EXPECT_EQ(a.bytes.data(), bytes_of(file).data() + file.size() - 30);
  EXPECT_EQ(a.bytes.size(), 24u);
  EXPECT_EQ(opened.at("b").elements(), 1u);
  EXPECT_EQ(opened.metadata.at("format"), "pt");
  EXPECT_EQ(opened.find("c"), nullptr);
}

TEST(Safetensors, FormatsWithoutWeightsAreNamedNotRead) {
  const std::string file = with_header(kValid, 30);
  const TensorFile opened = parse_safetensors(bytes_of(file), "f");
  EXPECT_EQ(opened.unread.at("mask"), "BOOL");
  EXPECT_EQ(error_of([&] { opened.at("mask"); }),
            "f: tensor 'mask': expected weights in a supported format, found BOOL");
  EXPECT_EQ(error_of([&] { opened.at("c"); }),
            "f: tensor 'c': expected in the file, found missing");
}

TEST(Safetensors, RefusesBadHeaders) {
  const auto parse = [](const std::string& file) {
    return error_of([&] { parse_safetensors(bytes_of(file), "f"); });
  };
  EXPECT_CONTAINS(parse("1234"), "f: byte 0: expected a safetensors header length of 8 bytes");
  EXPECT_CONTAINS(parse(raw<uint64_t>(3) + "{}"), "at most 2 bytes, found 3");
  EXPECT_CONTAINS(parse(raw<uint64_t>(~uint64_t{0}) + "{}"), "found 18446744073709551615");
  EXPECT_CONTAINS(parse(raw<uint64_t>(0)), "JSON byte 1");
  EXPECT_CONTAINS(error_for("[]", 0), "expected a JSON object, found array");
  EXPECT_CONTAINS(error_for("{\"a\":\n!}", 0), "JSON byte 7");
  EXPECT_CONTAINS(error_for("{\"a\":1e999}", 0), "f: JSON");
  EXPECT_CONTAINS(error_for("{} x", 0), "JSON byte 4");
  EXPECT_CONTAINS(error_for("{\"\xff\":1}", 0), "JSON byte 3");
  EXPECT_CONTAINS(error_for(R"({"__metadata__":{"a":1}})", 0), "__metadata__: expected");
  EXPECT_CONTAINS(error_for(R"({"a":1})", 0), "tensor 'a': expected an object, found number");
}

TEST(Safetensors, RefusesDeepNestingAndDuplicateKeys) {
  EXPECT_CONTAINS(error_for(std::string(1'000'000, '['), 0), "at most 64 levels deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_CONTAINS(error_for(objects, 0), "at most 64 levels deep");
  EXPECT_CONTAINS(error_for(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                            R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                            0),
                  "key 'a': expected once in its JSON object, found twice");
  EXPECT_CONTAINS(error_for(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "key 'dtype'");
}

TEST(Safetensors, RefusesBadTensors) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets, size_t data_bytes) {
    return error_for("{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape +
                         ",\"data_offsets\":" + offsets + "}}",
                     data_bytes);
  };
  EXPECT_CONTAINS(tensor("1", "[1]", "[0,4]", 4), "dtype: expected a string, found number");
  EXPECT_CONTAINS(tensor("\"F31\"", "[1]", "[0,4]", 4), "found 'F31'");
  EXPECT_CONTAINS(tensor("\"F32\"", "1", "[0,4]", 4), "shape: expected a list");
  EXPECT_CONTAINS(tensor("\"F32\"", "[-1]", "[0,4]", 4), "shape: expected a list");
  EXPECT_CONTAINS(tensor("\"F32\"", "[1.0]", "[0,4]", 4), "shape: expected a list");
  EXPECT_CONTAINS(tensor("\"F32\"", "[18446744073709551615,2]", "[0,4]", 4), "at most 4 bytes");
  EXPECT_CONTAINS(tensor("\"F32\"", "[4611686018427387905]", "[0,4]", 4), "at most 4 bytes");
  EXPECT_CONTAINS(tensor("\"F32\"", "[1]", "[0]", 4), "data_offsets: expected [begin, end]");
  EXPECT_CONTAINS(tensor("\"F32\"", "[1]", "[4,0]", 4), "data_offsets: expected [begin, end]");
  EXPECT_CONTAINS(tensor("\"F32\"", "[1]", "[0,8]", 4), "within 4 bytes");
  EXPECT_CONTAINS(tensor("\"F32\"", "[2]", "[0,4]", 4), "expected 8 bytes for F32 [2]");
  EXPECT_CONTAINS(tensor("\"F32\"", "[1]", "[0,4]", 5), "expected 4 bytes of tensor data, found 5");
  EXPECT_CONTAINS(tensor("\"F32\"", "[1]", "[1,5]", 5), "a gap");
  EXPECT_CONTAINS(error_for(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                            R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                            6),
                  "tensor 'b': data_offsets: expected to begin at 4");
  EXPECT_CONTAINS(error_for("{\"a\\n\":{\"dtype\":\"U8\"}}", 0), "tensor 'a\\x0a'");
}

TEST(Safetensors, AnyCorruptionIsAnErrorOrHarmless) {
  const std::string file = with_header(kValid, 30);
  expect_no_crash(file, file.size() - 30, [](std::span<const std::byte> bytes) {
    const TensorFile opened = parse_safetensors(bytes, "f");
    for (const auto& [name, tensor] : opened.tensors) {
      if (tensor.dtype == DType::kU8) continue;
      std::vector<float> values(tensor.elements());
      read_f32(tensor, 0, values);
    }
  });
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::vector<float> a = {1, -2, 3.5f, 0, 5, 6};
  const std::vector<bf16> b = {to_bf16(0.5f), to_bf16(-1.0f)};
  const std::vector<TensorToWrite> tensors = {
      {"z", DType::kF32, {2, 3}, std::as_bytes(std::span(a))},
      {"odd", DType::kU8, {3}, std::as_bytes(std::span("abc", 3))},
      {"b", DType::kBF16, {2}, std::as_bytes(std::span(b))}};
  const auto path = folder.path / "out.safetensors";
  write_safetensors(path, tensors, {{"note", "tëst"}});
  const TensorFile opened = open_safetensors(path);
  EXPECT_EQ(opened.metadata.at("note"), "tëst");
  EXPECT_EQ(opened.path, path.string());
  std::vector<float> values(6);
  read_f32(opened.at("z"), 0, values);
  EXPECT_EQ(values, a);
  values.resize(2);
  read_f32(opened.at("b"), 0, values);
  EXPECT_EQ(values, (std::vector<float>{0.5f, -1.0f}));
  EXPECT_EQ(sha256_files(opened), sha256_hex(bytes_of(read_file(path))));
  // The same contents give the same file.
  const std::string first = read_file(path);
  write_safetensors(path, tensors, {{"note", "tëst"}});
  EXPECT_EQ(read_file(path), first);
}

TEST(Safetensors, RefusesToWriteWhatContradictsItself) {
  const TemporaryFolder folder;
  const auto path = folder.path / "out.safetensors";
  const std::vector<float> a(6);
  const auto bytes = std::as_bytes(std::span(a));
  const auto attempt = [&](std::vector<TensorToWrite> tensors) {
    return error_of([&] { write_safetensors(path, tensors, {}); });
  };
  EXPECT_CONTAINS(attempt({{"a", DType::kF32, {7}, bytes}}), "tensor 'a': expected the bytes");
  EXPECT_CONTAINS(attempt({{"a", DType::kQ4_0, {32}, bytes}}), "found Q4_0");
  EXPECT_CONTAINS(attempt({{"a", DType::kF32, {6}, bytes}, {"a", DType::kF32, {6}, bytes}}),
                  "found twice");
  EXPECT_CONTAINS(attempt({{"\xff", DType::kF32, {6}, bytes}}), "UTF-8");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
}

// A sharded checkpoint: tensors a and b in one.safetensors, c in two.safetensors.
struct Sharded : testing::Test {
  TemporaryFolder folder;
  const std::vector<float> value = {1, 2};

  void SetUp() override {
    const auto bytes = std::as_bytes(std::span(value));
    const std::vector<TensorToWrite> one = {{"a", DType::kF32, {2}, bytes},
                                            {"b", DType::kF32, {1, 2}, bytes}};
    const std::vector<TensorToWrite> two = {{"c", DType::kF32, {2, 1}, bytes}};
    write_safetensors(folder.path / "one.safetensors", one, {});
    write_safetensors(folder.path / "two.safetensors", two, {});
  }
  TensorFile open(const std::string& index) {
    return open_safetensors_index(folder.write("model.safetensors.index.json", index));
  }
  std::string error(const std::string& weight_map) {
    return error_of([&] { open(R"({"weight_map":)" + weight_map + "}"); });
  }
};

TEST_F(Sharded, ReadsAllShards) {
  const TensorFile opened =
      open(R"({"metadata":{"total_size":24},"weight_map":{"a":"one.safetensors",)"
           R"("b":"one.safetensors","c":"two.safetensors"}})");
  EXPECT_EQ(opened.tensors.size(), 3u);
  EXPECT_EQ(opened.mappings.size(), 2u);
  EXPECT_EQ(opened.metadata.at("total_size"), 24);
  EXPECT_CONTAINS(opened.at("c").file, "two.safetensors");
  const std::string one = read_file(folder.path / "one.safetensors");
  const std::string two = read_file(folder.path / "two.safetensors");
  const std::string lines = "one.safetensors:" + sha256_hex(bytes_of(one)) + "\n" +
                            "two.safetensors:" + sha256_hex(bytes_of(two)) + "\n";
  EXPECT_EQ(sha256_files(opened), sha256_hex(bytes_of(lines)));
}

TEST_F(Sharded, ChecksTheMap) {
  EXPECT_CONTAINS(error_of([&] { open("{}"); }), "weight_map: expected an object");
  EXPECT_CONTAINS(error("{}"), "found an empty object");
  EXPECT_CONTAINS(error("[]"), "found array");
  EXPECT_CONTAINS(error(R"({"a":1})"), "tensor 'a': expected the name of a file");
  EXPECT_CONTAINS(error(R"({"a":"../one.safetensors"})"), "found '../one.safetensors'");
  EXPECT_CONTAINS(error(R"({"a":"three.safetensors"})"), "'three.safetensors' beside the index");
  // A tensor that the map does not name, one in another shard than it says, one that is nowhere.
  EXPECT_CONTAINS(error(R"({"a":"one.safetensors"})"), "tensor 'b': expected 'one.safetensors'");
  EXPECT_CONTAINS(error(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})"),
                  "found 'two.safetensors'");
  EXPECT_CONTAINS(error(R"({"a":"one.safetensors","b":"one.safetensors","d":"one.safetensors"})"),
                  "tensor 'd': expected in 'one.safetensors', found missing");
}

TEST(Safetensors, FilesThatAreNone) {
  const TemporaryFolder folder;
  EXPECT_CONTAINS(error_of([&] { open_safetensors(folder.path / "none"); }), "No such file");
  EXPECT_CONTAINS(error_of([&] { open_safetensors(folder.path); }), "found a directory");
  const auto empty = folder.write("empty", "");
  EXPECT_CONTAINS(error_of([&] { open_safetensors(empty); }), "found an empty file");
}

}  // namespace
}  // namespace halflin
