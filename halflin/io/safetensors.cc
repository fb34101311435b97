// safetensors: 8 bytes of header length (little-endian), a JSON header
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//    "__metadata__": {"key": "text"}}
// and the tensors' bytes, to which the offsets refer. https://github.com/huggingface/safetensors
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "halflin/base/error.h"
#include "halflin/io/checked.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/io/mapped_file.h"
#include "halflin/io/printable.h"
#include "halflin/io/tensor_file.h"

namespace halflin {
namespace {

using nlohmann::json;

constexpr size_t kLongestHeader = 100'000'000;  // the reference implementation's limit

struct Format {
  std::string_view name;
  size_t bits;
  std::optional<DType> dtype;  // none: no weights that we read
};

constexpr Format kFormats[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"U8", 8, DType::kU8},
    {"BOOL", 8, {}},
    {"I8", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I32", 32, {}},
    {"U32", 32, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"F64", 64, {}},
    {"C64", 64, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
};

struct Entry {
  std::string name;
  const Format* format = nullptr;
  std::vector<size_t> shape;
  size_t begin = 0;  // bytes from the start of the data section
  size_t end = 0;
};

// A list of whole numbers >= 0, or an Error.
std::vector<size_t> read_sizes(const json& tensor, const std::string& key,
                               const std::string& place) {
  const json* list = find_member(tensor, key);
  const auto is_size = [](const json& v) { return v.is_number_unsigned(); };
  if (list == nullptr || !list->is_array() || !std::all_of(list->begin(), list->end(), is_size)) {
    fail("{}: {}: expected a list of whole numbers, found {}", place, key,
         list == nullptr    ? "nothing"
         : list->is_array() ? "other entries"
                            : list->type_name());
  }
  return list->get<std::vector<size_t>>();
}

Entry read_entry(const std::string& name, const json& tensor, size_t data_bytes,
                 const std::string& file) {
  const std::string place = fmt::format("{}: tensor {}", file, in_quotes(name));
  if (!tensor.is_object()) fail("{}: expected an object, found {}", place, tensor.type_name());

  Entry entry;
  entry.name = name;
  const json* dtype = find_member(tensor, "dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    fail("{}: dtype: expected a string, found {}", place,
         dtype == nullptr ? "nothing" : dtype->type_name());
  }
  const auto& dtype_text = dtype->get_ref<const std::string&>();
  for (const Format& format : kFormats) {
    if (format.name == dtype_text) entry.format = &format;
  }
  if (entry.format == nullptr) {
    fail("{}: dtype: expected F32, F16, BF16 or another of safetensors' formats, found {}", place,
         in_quotes(dtype_text));
  }

  entry.shape = read_sizes(tensor, "shape", place);
  const auto elements = checked_product(entry.shape);
  size_t bits = 0;
  if (!elements || __builtin_mul_overflow(*elements, entry.format->bits, &bits)) {
    fail("{}: shape: expected a tensor of at most {} bytes, found {}", place, data_bytes,
         shape_text(entry.shape));
  }

  const auto offsets = read_sizes(tensor, "data_offsets", place);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    fail("{}: data_offsets: expected [begin, end] within {} bytes of data, found {}", place,
         data_bytes, shape_text(offsets));
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (bits % 8 != 0 || entry.end - entry.begin != bits / 8) {
    fail("{}: expected {} bytes for {} {}, found data_offsets {}, {} bytes", place, bits / 8,
         entry.format->name, shape_text(entry.shape), shape_text(offsets), entry.end - entry.begin);
  }
  return entry;
}

// Every byte of the data section belongs to exactly one tensor.
void check_layout(std::vector<Entry> entries, size_t data_bytes, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at) {
      fail(
          "{}: tensor {}: data_offsets: expected to begin at {}, where the previous tensor ends, "
          "found {}: {}",
          file, in_quotes(entry.name), at, entry.begin,
          entry.begin < at ? "tensors overlap" : "a gap between tensors");
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    fail("{}: expected {} bytes of tensor data, found {}", file, at, data_bytes);
  }
}

// A shard's name is a file beside the index, never a path that leads elsewhere.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

std::map<std::string, std::string> read_weight_map(const json& index, const std::string& path) {
  const json* weight_map = find_member(index, "weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty()) {
    fail("{}: weight_map: expected an object of tensor names and files, found {}", path,
         weight_map == nullptr     ? "nothing"
         : weight_map->is_object() ? "an empty object"
                                   : weight_map->type_name());
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      fail("{}: weight_map: tensor {}: expected the name of a file beside the index, found {}",
           path, in_quotes(tensor),
           shard.is_string() ? in_quotes(shard.get_ref<const std::string&>()) : shard.type_name());
    }
    shard_of[tensor] = shard.get<std::string>();
  }
  return shard_of;
}

}  // namespace

TensorFile parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    fail("{}: byte 0: expected a safetensors header length of 8 bytes, found a file of {} bytes",
         name, file.size());
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const size_t rest = file.size() - sizeof(header_bytes);
  if (header_bytes > std::min(rest, kLongestHeader)) {
    fail("{}: byte 0: expected a header length of at most {} bytes, found {}", name,
         std::min(rest, kLongestHeader), header_bytes);
  }
  const std::string_view header_text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  const std::span<const std::byte> data = file.subspan(sizeof(header_bytes) + header_bytes);

  const json header = parse_json(header_text, name);
  if (!header.is_object()) {
    fail("{}: byte 8: expected a JSON object, found {}", name, header.type_name());
  }

  TensorFile out;
  out.path = name;
  out.metadata = json::object();
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      const auto is_text = [](const json& v) { return v.is_string(); };
      if (!value.is_object() || !std::all_of(value.begin(), value.end(), is_text)) {
        fail("{}: __metadata__: expected an object of strings, found {}", name,
             value.is_object() ? "other values" : value.type_name());
      }
      out.metadata = value;
      continue;
    }
    entries.push_back(read_entry(key, value, data.size(), name));
    const Entry& entry = entries.back();
    if (entry.format->dtype) {
      out.tensors[key] = {key, *entry.format->dtype, entry.shape,
                          data.subspan(entry.begin, entry.end - entry.begin), name};
    } else {
      out.unread[key] = entry.format->name;
    }
  }
  check_layout(std::move(entries), data.size(), name);
  return out;
}

TensorFile open_safetensors(const std::filesystem::path& path) {
  auto mapping = std::make_shared<MappedFile>(path);
  TensorFile out = parse_safetensors(mapping->bytes(), mapping->path());
  out.mappings.push_back(std::move(mapping));
  return out;
}

TensorFile open_safetensors_index(const std::filesystem::path& index_path) {
  const std::string path = index_path.string();
  const json index = parse_json(read_file(index_path), path);
  const auto shard_of = read_weight_map(index, path);

  TensorFile out;
  out.path = path;
  const json* metadata = find_member(index, "metadata");
  out.metadata = metadata == nullptr ? json::object() : *metadata;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);

  for (const std::string& shard : shards) {
    const std::filesystem::path shard_path = index_path.parent_path() / shard;
    if (!std::filesystem::exists(shard_path)) {
      fail("{}: weight_map: expected the file {} beside the index, found it missing", path,
           in_quotes(shard));
    }
    TensorFile part = open_safetensors(shard_path);
    const auto check_mapped = [&](const std::string& tensor) {
      const auto mapped = shard_of.find(tensor);
      if (mapped == shard_of.end() || mapped->second != shard) {
        fail("{}: tensor {}: expected {} in the weight_map of {}, found {}", part.path,
             in_quotes(tensor), in_quotes(shard), path,
             mapped == shard_of.end() ? "no entry" : in_quotes(mapped->second));
      }
    };
    for (const auto& [tensor, info] : part.tensors) check_mapped(tensor);
    for (const auto& [tensor, format] : part.unread) check_mapped(tensor);
    out.tensors.merge(part.tensors);
    out.unread.merge(part.unread);
    out.mappings.insert(out.mappings.end(), part.mappings.begin(), part.mappings.end());
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (!out.tensors.contains(tensor) && !out.unread.contains(tensor)) {
      fail("{}: weight_map: tensor {}: expected in {}, found missing", path, in_quotes(tensor),
           in_quotes(shard));
    }
  }
  return out;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::string place = fmt::format("{}: tensor {}", path.string(), in_quotes(tensor.name));
    if (dtype_block_elements(tensor.dtype) != 1) {
      fail("{}: expected a format of safetensors, found {}", place, dtype_name(tensor.dtype));
    }
    const auto elements = checked_product(tensor.shape);
    const size_t bytes = tensor.bytes.size();
    if (!elements || *elements != bytes / dtype_block_bytes(tensor.dtype) ||
        bytes % dtype_block_bytes(tensor.dtype) != 0) {
      fail("{}: expected the bytes of {} {}, found {} bytes", place, dtype_name(tensor.dtype),
           shape_text(tensor.shape), bytes);
    }
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      fail("{}: expected once, found twice", place);
    }
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail("{}: expected tensor names and metadata in UTF-8", path.string());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors begin aligned to 8 bytes
  const uint64_t header_bytes = text.size();

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(text);
  for (const TensorToWrite& tensor : tensors) file.write(tensor.bytes);
  file.commit();
}

}  // namespace halflin
