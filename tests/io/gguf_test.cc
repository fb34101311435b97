#include <chrono>

#include "halflin/io/tensor_file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

// GGUF value types and ggml types used here.
constexpr uint32_t kUint8 = 0, kUint16 = 2, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
                   kString = 8, kArray = 9, kUint64 = 10;
constexpr uint32_t kF32 = 0, kQ4_0 = 2, kIQ2_XXS = 16, kI32 = 26;

std::string text(const std::string& s) { return raw<uint64_t>(s.size()) + s; }

// A GGUF file in the making.
struct Builder {
  uint32_t version = 3;
  uint64_t keys = 0;
  uint64_t tensors = 0;
  std::string key_values;
  std::string infos;
  std::string data;
  size_t alignment = 32;

  Builder& key(const std::string& name, uint32_t type, const std::string& value) {
    key_values += text(name) + raw(type) + value;
    ++keys;
    return *this;
  }
  // Dimensions innermost first, as in the file.
  Builder& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                  uint64_t offset) {
    infos += text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) infos += raw(d);
    infos += raw(type) + raw(offset);
    ++tensors;
    return *this;
  }
  Builder& bytes(size_t count) {
    data.assign(count, '\0');
    return *this;
  }
  std::string build() const {
    std::string file = "GGUF" + raw(version) + raw(tensors) + raw(keys) + key_values + infos;
    if (!data.empty()) file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data;
  }
  std::string error() const {
    const std::string file = build();
    return error_of([&] { parse_gguf(bytes_of(file), "f"); });
  }
};

Builder valid() {
  Builder builder;
  builder.key("general.architecture", kString, text("llama"))
      .key("llama.block_count", kUint32, raw<uint32_t>(30))
      .key("flag", kBool, raw<uint8_t>(1))
      .key("eps", kFloat32, raw(1e-5f))
      .key("tokens", kArray, raw(kString) + raw<uint64_t>(2) + text("a") + text("\xff"))
      .key("nested", kArray,
           raw(kArray) + raw<uint64_t>(2) + raw(kUint8) + raw<uint64_t>(1) + raw<uint8_t>(7) +
               raw(kInt32) + raw<uint64_t>(1) + raw<int32_t>(-7))
      .tensor("w", {32, 2}, kQ4_0, 0)
      .tensor("b", {3}, kF32, 64)
      .tensor("ids", {1, 1, 1, 2}, kI32, 96)
      .bytes(96 + 8);
  return builder;
}

TEST(Gguf, ReadsMetadataAndTensors) {
  const std::string file = valid().build();
  const TensorFile opened = parse_gguf(bytes_of(file), "f");
  EXPECT_EQ(opened.metadata.at("general.architecture"), "llama");
  EXPECT_EQ(opened.metadata.at("llama.block_count"), 30);
  EXPECT_EQ(opened.metadata.at("flag"), true);
  EXPECT_EQ(opened.metadata.at("eps").get<float>(), 1e-5f);
  EXPECT_EQ(opened.metadata.at("tokens")[1].get<std::string>(), "\xff");
  EXPECT_EQ(opened.metadata.at("nested")[1][0], -7);
  EXPECT_EQ(opened.at("w").shape, (std::vector<size_t>{2, 32}));
  EXPECT_EQ(opened.at("w").dtype, DType::kQ4_0);
  EXPECT_EQ(opened.at("w").bytes.size(), 36u);
  EXPECT_EQ(opened.at("b").bytes.data(), bytes_of(file).data() + file.size() - 104 + 64);
  EXPECT_EQ(opened.unread.at("ids"), "I32");
  EXPECT_EQ(opened.tensors.size(), 2u);
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
  Builder builder;
  builder.version = 2;
  builder.alignment = 64;
  builder.key("general.alignment", kUint32, raw<uint32_t>(64)).tensor("a", {1}, kF32, 64).bytes(68);
  const std::string file = builder.build();
  EXPECT_EQ(parse_gguf(bytes_of(file), "f").at("a").elements(), 1u);
}

TEST(Gguf, RefusesOtherVersionsByName) {
  const auto parse = [](const std::string& file) {
    return error_of([&] { parse_gguf(bytes_of(file), "f"); });
  };
  EXPECT_CONTAINS(parse("GG"), "expected the letters GGUF");
  EXPECT_CONTAINS(parse("GGML0123"), "expected the letters GGUF");
  EXPECT_CONTAINS(parse("GGUF" + raw<uint32_t>(1)), "expected GGUF version 2 or 3, found 1");
  EXPECT_CONTAINS(parse("GGUF" + raw<uint32_t>(0x03000000)), "found a big-endian one");
  EXPECT_CONTAINS(parse("GGUF" + raw<uint32_t>(4)), "found 4");
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  const auto parse = [](const std::string& file) {
    return error_of([&] { parse_gguf(bytes_of(file), "f"); });
  };
  const std::string head = "GGUF" + raw<uint32_t>(3);
  const uint64_t huge = uint64_t{1} << 60;
  EXPECT_CONTAINS(parse(head + raw(huge) + raw<uint64_t>(0)), "tensor count: expected at most");
  EXPECT_CONTAINS(parse(head + raw<uint64_t>(0) + raw(~uint64_t{0})), "key count: expected");
  EXPECT_CONTAINS(
      Builder().key("a", kArray, raw(kUint8) + raw(huge) + "x").error(),
      "key 'a': expected at most the 1 bytes left in the file, found 1152921504606846976");
  EXPECT_CONTAINS(Builder().key("a", kArray, raw(kString) + raw<uint64_t>(2) + text("x")).error(),
                  "key 'a': expected at most");
  EXPECT_CONTAINS(Builder().key("a", kString, raw(~uint64_t{0}) + "x").error(), "key 'a'");
}

TEST(Gguf, RefusesBadMetadata) {
  EXPECT_CONTAINS(Builder().key("a", 13, "x").error(), "key 'a': expected a value type below 13");
  EXPECT_CONTAINS(Builder().key("a", kBool, raw<uint8_t>(2)).error(), "a bool of 0 or 1, found 2");
  EXPECT_CONTAINS(
      Builder().key("a", kBool, raw<uint8_t>(1)).key("a", kBool, raw<uint8_t>(1)).error(),
      "key 'a': expected once, found twice");
  EXPECT_CONTAINS(Builder().key("split.count", kUint16, raw<uint16_t>(2)).error(),
                  "key 'split.count': expected a GGUF in one file, found one split over 2");
  EXPECT_CONTAINS(Builder().key("general.alignment", kUint32, raw<uint32_t>(0)).error(),
                  "expected a power of two, found 0");
  EXPECT_CONTAINS(Builder().key("general.alignment", kUint64, raw<uint64_t>(48)).error(),
                  "expected a power of two, found 48");
  EXPECT_CONTAINS(Builder().key("general.alignment", kString, text("x")).error(), "found string");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += raw(kArray) + raw<uint64_t>(1);
  EXPECT_CONTAINS(Builder().key("a", kArray, deep).error(), "arrays at most 4 deep");
}

TEST(Gguf, RefusesBadTensors) {
  const uint64_t huge = uint64_t{1} << 40;
  EXPECT_CONTAINS(Builder().tensor("a", {}, kF32, 0).bytes(64).error(), "1 to 4 dimensions");
  EXPECT_CONTAINS(Builder().tensor("a", {1, 1, 1, 1, 1}, kF32, 0).bytes(64).error(), "found 5");
  EXPECT_CONTAINS(Builder().tensor("a", {4, 0}, kF32, 0).bytes(64).error(), "at least 1, found 0");
  EXPECT_CONTAINS(Builder().tensor("a", {huge, huge}, kF32, 0).bytes(64).error(),
                  "tensor 'a': shape: expected a tensor of at most");
  EXPECT_CONTAINS(Builder().tensor("a", {uint64_t{1} << 62}, kF32, 0).bytes(64).error(), "shape");
  EXPECT_CONTAINS(Builder().tensor("a", {33}, kQ4_0, 0).bytes(64).error(),
                  "rows of a multiple of 32 elements for Q4_0, found 33");
  EXPECT_CONTAINS(Builder().tensor("a", {256}, kIQ2_XXS, 0).bytes(64).error(), "found IQ2_XXS");
  EXPECT_CONTAINS(Builder().tensor("a", {1}, 99, 0).bytes(64).error(), "found 99");
  EXPECT_CONTAINS(Builder().tensor("a", {1}, kF32, 4).bytes(64).error(), "multiple of 32, found 4");
  EXPECT_CONTAINS(Builder().tensor("a", {17}, kF32, 0).bytes(64).error(),
                  "expected 68 bytes at offset 0 of the data, found 64 bytes of data");
  EXPECT_CONTAINS(Builder().tensor("a", {1}, kF32, ~uint64_t{31}).bytes(64).error(), "at offset");
  EXPECT_CONTAINS(Builder().tensor("a", {9}, kF32, 0).tensor("b", {1}, kF32, 32).bytes(64).error(),
                  "tensor 'b': offset: expected 36 or more, where tensor 'a' ends");
  EXPECT_CONTAINS(Builder().tensor("a", {1}, kF32, 0).tensor("a", {1}, kF32, 32).bytes(64).error(),
                  "tensor 'a': expected once, found twice");
}

TEST(Gguf, AnyCorruptionIsAnErrorOrHarmless) {
  const Builder builder = valid();
  const std::string file = builder.build();
  expect_no_crash(file, file.size() - builder.data.size(), [](std::span<const std::byte> bytes) {
    const TensorFile opened = parse_gguf(bytes, "f");
    for (const auto& [name, tensor] : opened.tensors) {
      std::vector<float> values(tensor.elements());
      read_f32(tensor, 0, values);
    }
  });
}

TEST(Gguf, ReadsRealVocabulariesFast) {
  const std::filesystem::path folder = std::filesystem::path(HALFLIN_SHARED) / "data" / "vocab";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  const auto tokens = [&](const char* name) {
    const auto start = std::chrono::steady_clock::now();
    const TensorFile opened = open_gguf(folder / name);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    RecordProperty(std::string("seconds_") + name, std::to_string(seconds.count()));
    EXPECT_LT(seconds.count(), 0.5);  // about 0.01; the bound allows for sanitizers
    return opened.metadata.at("tokenizer.ggml.tokens").size();
  };
  EXPECT_EQ(tokens("gpt-2.gguf"), 50257u);
  EXPECT_EQ(tokens("llama-spm.gguf"), 32000u);
  EXPECT_GT(tokens("gpt-neox.gguf"), 50000u);
}

}  // namespace
}  // namespace halflin
