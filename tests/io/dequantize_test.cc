#include <cmath>
#include <limits>

#include "halflin/io/tensor_file.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

// F32 is the format of the references.
const DType kFormats[] = {DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                          DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,
                          DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

struct Quantised : testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Formats, Quantised, testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// Blocks and what gguf-py's reference makes of them.
TEST_P(Quantised, EqualsTheReference) {
  const std::string name(dtype_name(GetParam()));
  const auto path = std::filesystem::path(HALFLIN_FIXTURES) / "quants" / (name + ".safetensors");
  const TensorFile fixture = open_safetensors(path);
  const TensorInfo& reference = fixture.at("expected");
  std::vector<float> expected(reference.elements());
  read_f32(reference, 0, expected);

  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = GetParam();
  tensor.shape = {expected.size()};
  tensor.bytes = fixture.at("bytes").bytes;
  ASSERT_EQ(tensor.bytes.size() / dtype_block_bytes(tensor.dtype),
            expected.size() / dtype_block_elements(tensor.dtype));
  std::vector<float> values(expected.size());
  read_f32(tensor, 0, values);
  for (size_t i = 0; i < expected.size(); ++i) {
    // Bit for bit where the compiler does not fuse multiply and add.
    EXPECT_NEAR(values[i], expected[i], 1e-6f * (std::fabs(expected[i]) + 1e-3f)) << i;
  }

  // A part equals the same part of the whole.
  const size_t block = dtype_block_elements(tensor.dtype);
  if (expected.size() >= 3 * block) {
    std::vector<float> part(block);
    read_f32(tensor, 2 * block, part);
    for (size_t i = 0; i < block; ++i) EXPECT_EQ(part[i], values[2 * block + i]);
  }
}

// Any bytes decode without a step outside (sanitizers watch), unless a scale is not finite.
TEST_P(Quantised, AnyBytesDecode) {
  const size_t block_bytes = dtype_block_bytes(GetParam());
  const size_t blocks = 8;
  const auto bytes = std::make_unique<std::byte[]>(blocks * block_bytes);
  uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    for (size_t i = 0; i < blocks * block_bytes; ++i) {
      state = state * 1664525u + 1013904223u;
      bytes[i] = static_cast<std::byte>(state >> 24);
    }
    TensorInfo tensor{"t", GetParam(), {}, {bytes.get(), blocks * block_bytes}, "f"};
    tensor.shape = {blocks * dtype_block_elements(GetParam())};
    std::vector<float> values(tensor.elements());
    try {
      read_f32(tensor, 0, values);
      for (const float v : values) EXPECT_TRUE(std::isfinite(v));
    } catch (const Error& error) {
      EXPECT_CONTAINS(error.what(), "expected a finite number");
    }
  }
}

TEST(ReadF32, HalvesConvertExactly) {
  std::vector<uint16_t> halves;
  for (uint32_t h = 0; h < 0x10000; ++h) {
    if ((h & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(h));
  }
  const TensorInfo tensor{"t", DType::kF16, {halves.size()}, std::as_bytes(std::span(halves)), "f"};
  std::vector<float> values(halves.size());
  read_f32(tensor, 0, values);
  for (size_t i = 0; i < halves.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(f16_to_float(halves[i])));
  }
}

TEST(ReadF32, NamesTheElementThatIsNotFinite) {
  std::vector<float> numbers(10'000, 1.0f);
  numbers[7003] = std::numeric_limits<float>::quiet_NaN();
  const TensorInfo tensor{
      "h.0.w", DType::kF32, {100, 100}, std::as_bytes(std::span(numbers)), "m.safetensors"};
  std::vector<float> values(10'000);
  const std::string message = error_of([&] { read_f32(tensor, 0, values); });
  EXPECT_EQ(
      message,
      "m.safetensors: tensor 'h.0.w': element 7003 ([70, 3]): expected a finite number, found "
      "nan");
  read_f32(tensor, 0, std::span(values).first(7003));
  EXPECT_CONTAINS(error_of([&] { read_f32(tensor, 7000, std::span(values).first(10)); }),
                  "element 7003");

  for (const auto& [dtype, bits, found] :
       {std::tuple{DType::kF16, 0x7c00, "inf"}, std::tuple{DType::kF16, 0xfc00, "-inf"},
        std::tuple{DType::kF16, 0x7c01, "nan"}, std::tuple{DType::kBF16, 0xff80, "-inf"},
        std::tuple{DType::kBF16, 0x7fc0, "nan"}}) {
    const auto half = static_cast<uint16_t>(bits);
    const TensorInfo one{"t", dtype, {1}, std::as_bytes(std::span(&half, 1)), "f"};
    float value = 0;
    EXPECT_EQ(
        error_of([&] {
          read_f32(one, 0, {&value, 1});
        }),
        std::string("f: tensor 't': element 0 ([0]): expected a finite number, found ") + found);
  }
}

TEST(ReadF32, RefusesRangesAndFormatsThatMeanNothing) {
  const std::string bytes(36, '\0');
  const TensorInfo tensor{"t", DType::kQ4_0, {64}, bytes_of(bytes), "f"};
  std::vector<float> values(128);
  const std::span<float> out(values);
  read_f32(tensor, 32, out.first(32));
  read_f32(tensor, 64, out.first(0));
  EXPECT_CONTAINS(error_of([&] { read_f32(tensor, 0, out.first(96)); }), "within 64 elements");
  EXPECT_CONTAINS(error_of([&] { read_f32(tensor, 16, out.first(32)); }), "whole blocks of 32");
  EXPECT_CONTAINS(error_of([&] { read_f32(tensor, 0, out.first(16)); }), "whole blocks of 32");
  EXPECT_CONTAINS(error_of([&] { read_f32(tensor, ~size_t{31}, out.first(64)); }), "whole blocks");
  const TensorInfo mask{"t", DType::kU8, {36}, bytes_of(bytes), "f"};
  EXPECT_CONTAINS(error_of([&] { read_f32(mask, 0, out.first(36)); }),
                  "expected weights, found the format U8");
}

}  // namespace
}  // namespace halflin
