// GGUF, ggml's container: header, key-values, tensor descriptions, then the tensors' bytes, each
// aligned. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "halflin/base/error.h"
#include "halflin/io/checked.h"
#include "halflin/io/gguf_types.h"
#include "halflin/io/mapped_file.h"
#include "halflin/io/printable.h"
#include "halflin/io/tensor_file.h"

namespace halflin {
namespace {

using nlohmann::json;

constexpr int kDeepestArray = 4;  // arrays in arrays; the format sets no limit, files use one level
// Bytes that the smallest entries take: what a count can claim of the file's rest.
constexpr size_t kSmallestKeyValue = 8 + 4 + 1;        // key length, type, one byte
constexpr size_t kSmallestTensor = 8 + 4 + 8 + 4 + 8;  // name length, rank, one dim, type, offset

using namespace gguf;

// The bytes a value takes at least, by ValueType: a string its length, an array its type and count.
constexpr size_t kSmallestValue[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

struct Format {
  std::string_view name;
  std::optional<DType> dtype;
  size_t unread_bytes = 0;  // an element's size, for plain formats that hold no weights we read
};

// By ggml_type. Those with neither a dtype nor a size are refused.
constexpr Format kFormats[] = {
    {"F32", DType::kF32},   {"F16", DType::kF16},   {"Q4_0", DType::kQ4_0}, {"Q4_1", DType::kQ4_1},
    {"Q4_2", {}},           {"Q4_3", {}},           {"Q5_0", DType::kQ5_0}, {"Q5_1", DType::kQ5_1},
    {"Q8_0", DType::kQ8_0}, {"Q8_1", {}},           {"Q2_K", DType::kQ2_K}, {"Q3_K", DType::kQ3_K},
    {"Q4_K", DType::kQ4_K}, {"Q5_K", DType::kQ5_K}, {"Q6_K", DType::kQ6_K}, {"Q8_K", {}},
    {"IQ2_XXS", {}},        {"IQ2_XS", {}},         {"IQ3_XXS", {}},        {"IQ1_S", {}},
    {"IQ4_NL", {}},         {"IQ3_S", {}},          {"IQ2_S", {}},          {"IQ4_XS", {}},
    {"I8", {}, 1},          {"I16", {}, 2},         {"I32", {}, 4},         {"I64", {}, 8},
    {"F64", {}, 8},         {"IQ1_M", {}},          {"BF16", DType::kBF16}, {"Q4_0_4_4", {}},
    {"Q4_0_4_8", {}},       {"Q4_0_8_8", {}},       {"TQ1_0", {}},          {"TQ2_0", {}},
    {"IQ4_NL_4_4", {}},     {"IQ4_NL_4_8", {}},     {"IQ4_NL_8_8", {}},     {"MXFP4", {}},
};

// Reads forward; every read is checked against the end of the file first.
struct Cursor {
  std::span<const std::byte> file;
  const std::string& name;
  size_t at = 0;

  size_t rest() const { return file.size() - at; }

  // Throws unless `count` entries of at least `smallest` bytes fit what is left of the file.
  void need(uint64_t count, size_t smallest, const std::string& what) const {
    if (count > rest() / smallest) {
      fail(
          "{}: byte {}: {}: expected at most the {} bytes left in the file, found {} x {} bytes or "
          "more",
          name, at, what, rest(), count, smallest);
    }
  }

  template <class T>
  T number(const std::string& what) {
    if (sizeof(T) > rest()) {
      fail("{}: byte {}: {}: expected {} bytes, found {} left in the file", name, at, what,
           sizeof(T), rest());
    }
    T value;
    std::memcpy(&value, file.data() + at, sizeof(T));
    at += sizeof(T);
    return value;
  }

  // Bytes as they are: GGUF says UTF-8, files do not always hold it.
  std::string string(const std::string& what) {
    const auto length = number<uint64_t>(what);
    need(length, 1, what);
    std::string value(reinterpret_cast<const char*>(file.data()) + at, length);
    at += length;
    return value;
  }
};

uint32_t read_value_type(Cursor& in, const std::string& what) {
  const auto type = in.number<uint32_t>(what);
  if (type >= std::size(kSmallestValue)) {
    fail("{}: byte {}: {}: expected a value type below {}, found {}", in.name, in.at - 4, what,
         std::size(kSmallestValue), type);
  }
  return type;
}

json read_value(Cursor& in, uint32_t type, const std::string& what, int depth) {
  switch (type) {
    case kUint8:
      return in.number<uint8_t>(what);
    case kInt8:
      return in.number<int8_t>(what);
    case kUint16:
      return in.number<uint16_t>(what);
    case kInt16:
      return in.number<int16_t>(what);
    case kUint32:
      return in.number<uint32_t>(what);
    case kInt32:
      return in.number<int32_t>(what);
    case kFloat32:
      return in.number<float>(what);
    case kUint64:
      return in.number<uint64_t>(what);
    case kInt64:
      return in.number<int64_t>(what);
    case kFloat64:
      return in.number<double>(what);
    case kString:
      return in.string(what);
    case kBool: {
      const auto value = in.number<uint8_t>(what);
      if (value > 1) {
        fail("{}: byte {}: {}: expected a bool of 0 or 1, found {}", in.name, in.at - 1, what,
             value);
      }
      return value == 1;
    }
    default:
      break;
  }
  if (depth >= kDeepestArray) {
    fail("{}: byte {}: {}: expected arrays at most {} deep, found more", in.name, in.at, what,
         kDeepestArray);
  }
  const uint32_t element = read_value_type(in, what);
  const auto count = in.number<uint64_t>(what);
  in.need(count, kSmallestValue[element], what);
  json::array_t values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    values.push_back(read_value(in, element, what, depth + 1));
  }
  return values;
}

json read_metadata(Cursor& in, uint64_t count) {
  json metadata = json::object();
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = in.string(fmt::format("name of key {}", i));
    const std::string what = fmt::format("key {}", in_quotes(key));
    if (metadata.contains(key)) {
      fail("{}: {}: expected once, found twice", in.name, what);
    }
    const uint32_t type = read_value_type(in, what);
    metadata[key] = read_value(in, type, what, 0);
  }
  return metadata;
}

size_t read_alignment(const json& metadata, const std::string& file) {
  const auto at = metadata.find("general.alignment");
  if (at == metadata.end()) return 32;
  if (!at->is_number_unsigned() || !std::has_single_bit(at->get<uint64_t>()) ||
      at->get<uint64_t>() > UINT32_MAX) {
    fail("{}: key 'general.alignment': expected a power of two, found {}", file,
         at->is_number() ? at->dump() : at->type_name());
  }
  return at->get<size_t>();
}

void refuse_split(const json& metadata, const std::string& file) {
  const auto at = metadata.find("split.count");
  if (at == metadata.end()) return;
  if (!at->is_number_integer() || *at > 1) {
    fail(
        "{}: key 'split.count': expected a GGUF in one file, found one split over {} (join them "
        "with "
        "llama-gguf-split --merge)",
        file, at->is_number() ? at->dump() : at->type_name());
  }
}

struct Entry {
  std::string name;
  const Format* format = nullptr;
  std::vector<size_t> shape;  // row-major, outermost first
  size_t bytes = 0;
  uint64_t offset = 0;  // from the start of the data section
};

Entry read_entry(Cursor& in, uint64_t index) {
  Entry entry;
  entry.name = in.string(fmt::format("name of tensor {}", index));
  const std::string what = fmt::format("tensor {}", in_quotes(entry.name));
  const std::string place = fmt::format("{}: {}", in.name, what);

  const auto rank = in.number<uint32_t>(what);
  if (rank < 1 || rank > 4) fail("{}: expected 1 to 4 dimensions, found {}", place, rank);
  entry.shape.resize(rank);
  for (size_t d = rank; d-- > 0;) {  // ggml counts from the innermost
    entry.shape[d] = in.number<uint64_t>(what);
    if (entry.shape[d] == 0) fail("{}: expected dimensions of at least 1, found 0", place);
  }
  const auto type = in.number<uint32_t>(what);
  if (type >= std::size(kFormats)) {
    fail("{}: expected a ggml type below {}, found {}", place, std::size(kFormats), type);
  }
  entry.format = &kFormats[type];
  if (!entry.format->dtype && entry.format->unread_bytes == 0) {
    fail("{}: expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or Q2_K to Q6_K, found {}",
         place, entry.format->name);
  }
  entry.offset = in.number<uint64_t>(what);

  const auto dtype = entry.format->dtype;
  const size_t block_elements = dtype ? dtype_block_elements(*dtype) : 1;
  const size_t block_bytes = dtype ? dtype_block_bytes(*dtype) : entry.format->unread_bytes;
  if (entry.shape.back() % block_elements != 0) {
    fail("{}: expected rows of a multiple of {} elements for {}, found {}", place, block_elements,
         entry.format->name, entry.shape.back());
  }
  const auto elements = checked_product(entry.shape);
  if (!elements || __builtin_mul_overflow(*elements / block_elements, block_bytes, &entry.bytes)) {
    fail("{}: shape: expected a tensor of at most {} bytes, found {}", place, in.file.size(),
         shape_text(entry.shape));
  }
  return entry;
}

// Aligned, inside the data section, and no byte in two tensors.
void check_layout(const std::vector<Entry>& entries, size_t data_bytes, size_t alignment,
                  const std::string& file) {
  std::vector<const Entry*> ordered;
  for (const Entry& entry : entries) {
    if (entry.offset % alignment != 0) {
      fail("{}: tensor {}: offset: expected a multiple of {}, found {}", file,
           in_quotes(entry.name), alignment, entry.offset);
    }
    if (entry.offset > data_bytes || entry.bytes > data_bytes - entry.offset) {
      fail("{}: tensor {}: expected {} bytes at offset {} of the data, found {} bytes of data",
           file, in_quotes(entry.name), entry.bytes, entry.offset, data_bytes);
    }
    ordered.push_back(&entry);
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const Entry* a, const Entry* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < ordered.size(); ++i) {
    const Entry& before = *ordered[i - 1];
    if (ordered[i]->offset < before.offset + before.bytes) {
      fail("{}: tensor {}: offset: expected {} or more, where tensor {} ends, found {}", file,
           in_quotes(ordered[i]->name), before.offset + before.bytes, in_quotes(before.name),
           ordered[i]->offset);
    }
  }
}

void check_version(Cursor& in) {
  if (in.file.size() < 4 || std::memcmp(in.file.data(), "GGUF", 4) != 0) {
    fail("{}: byte 0: expected the letters GGUF, found {}", in.name,
         in.file.size() < 4 ? "a shorter file" : "something else");
  }
  in.at = 4;
  const auto version = in.number<uint32_t>("version");
  if (version != 0 && (version & 0xffffu) == 0) {
    fail("{}: byte 4: expected a little-endian GGUF, found a big-endian one", in.name);
  }
  if (version != 2 && version != 3) {
    fail("{}: byte 4: expected GGUF version 2 or 3, found {}", in.name, version);
  }
}

}  // namespace

TensorFile parse_gguf(std::span<const std::byte> file, const std::string& name) {
  Cursor in{file, name};
  check_version(in);
  const auto tensor_count = in.number<uint64_t>("tensor count");
  const auto key_count = in.number<uint64_t>("key count");
  in.need(key_count, kSmallestKeyValue, "key count");
  in.need(tensor_count, kSmallestTensor, "tensor count");

  TensorFile out;
  out.path = name;
  out.metadata = read_metadata(in, key_count);
  refuse_split(out.metadata, name);
  const size_t alignment = read_alignment(out.metadata, name);

  in.need(tensor_count, kSmallestTensor, "tensor count");
  std::vector<Entry> entries;
  entries.reserve(tensor_count);
  for (uint64_t i = 0; i < tensor_count; ++i) entries.push_back(read_entry(in, i));

  // A file without tensors may end before the padding does.
  const size_t data_begin = std::min((in.at + alignment - 1) / alignment * alignment, file.size());
  const std::span<const std::byte> data = file.subspan(data_begin);
  check_layout(entries, data.size(), alignment, name);
  for (const Entry& entry : entries) {
    if (out.tensors.contains(entry.name) || out.unread.contains(entry.name)) {
      fail("{}: tensor {}: expected once, found twice", name, in_quotes(entry.name));
    }
    if (entry.format->dtype) {
      out.tensors[entry.name] = {entry.name, *entry.format->dtype, entry.shape,
                                 data.subspan(entry.offset, entry.bytes), name};
    } else {
      out.unread[entry.name] = entry.format->name;
    }
  }
  return out;
}

TensorFile open_gguf(const std::filesystem::path& path) {
  auto mapping = std::make_shared<MappedFile>(path);
  TensorFile out = parse_gguf(mapping->bytes(), mapping->path());
  out.mappings.push_back(std::move(mapping));
  return out;
}

}  // namespace halflin
