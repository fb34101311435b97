#include "halflin/base/dtype.h"

#include <iterator>

namespace halflin {
namespace {

struct Format {
  std::string_view name;
  size_t block_elements;
  size_t block_bytes;
};

// In the order of DType.
constexpr Format kFormats[] = {
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q4_0", 32, 2 + 16},                  // scale, nibbles
    {"Q4_1", 32, 2 + 2 + 16},              // scale, minimum, nibbles
    {"Q5_0", 32, 2 + 4 + 16},              // scale, fifth bits, nibbles
    {"Q5_1", 32, 2 + 2 + 4 + 16},          // scale, minimum, fifth bits, nibbles
    {"Q8_0", 32, 2 + 32},                  // scale, bytes
    {"Q2_K", 256, 16 + 64 + 2 + 2},        // scales, 2 bits each, scale and minimum of the block
    {"Q3_K", 256, 32 + 64 + 12 + 2},       // third bits, 2 bits each, scales, scale of the block
    {"Q4_K", 256, 2 + 2 + 12 + 128},       // scale and minimum of the block, scales, nibbles
    {"Q5_K", 256, 2 + 2 + 12 + 32 + 128},  // the same with fifth bits before the nibbles
    {"Q6_K", 256, 128 + 64 + 16 + 2},      // nibbles, upper 2 bits, scales, scale of the block
    {"U8", 1, 1},
};
static_assert(std::size(kFormats) == static_cast<size_t>(DType::kU8) + 1);

const Format& format_of(DType dtype) { return kFormats[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) { return format_of(dtype).name; }
size_t dtype_block_elements(DType dtype) { return format_of(dtype).block_elements; }
size_t dtype_block_bytes(DType dtype) { return format_of(dtype).block_bytes; }

}  // namespace halflin
