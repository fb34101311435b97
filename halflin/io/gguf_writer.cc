#include "halflin/io/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "halflin/base/error.h"
#include "halflin/io/checked.h"
#include "halflin/io/file.h"
#include "halflin/io/gguf_types.h"
#include "halflin/io/printable.h"

namespace halflin {

namespace {

using nlohmann::json;

constexpr size_t kAlignment = 32;

using namespace gguf;

class Writer {
 public:
  template <class T>
  void number(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
  }

  void string(const std::string& text) {
    number<uint64_t>(text.size());
    out += text;
  }

  void value(const GgufValue& value) {
    std::visit([this](const auto& v) { typed(v); }, value);
  }

  std::string out;

 private:
  void typed(bool v) {
    number<uint32_t>(kBool);
    number<uint8_t>(v ? 1 : 0);
  }
  void typed(uint32_t v) {
    number<uint32_t>(kUint32);
    number(v);
  }
  void typed(int32_t v) {
    number<uint32_t>(kInt32);
    number(v);
  }
  void typed(uint64_t v) {
    number<uint32_t>(kUint64);
    number(v);
  }
  void typed(float v) {
    number<uint32_t>(kFloat32);
    number(v);
  }
  void typed(const std::string& v) {
    number<uint32_t>(kString);
    string(v);
  }
  void typed(const std::vector<std::string>& list) {
    array(kString, list.size());
    for (const std::string& v : list) string(v);
  }
  void typed(const std::vector<int32_t>& list) {
    array(kInt32, list.size());
    for (const int32_t v : list) number(v);
  }
  void typed(const std::vector<float>& list) {
    array(kFloat32, list.size());
    for (const float v : list) number(v);
  }
  void array(uint32_t element, size_t count) {
    number<uint32_t>(kArray);
    number(element);
    number<uint64_t>(count);
  }
};

uint32_t ggml_type(const TensorToWrite& tensor, const std::string& file) {
  switch (tensor.dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kBF16:
      return 30;
    default:
      fail("{}: tensor {}: {} is not written to GGUF", file, in_quotes(tensor.name),
           dtype_name(tensor.dtype));
  }
}

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void check_tensor(const TensorToWrite& tensor, const std::string& file) {
  const auto elements = checked_product(tensor.shape);
  size_t bytes = 0;
  if (tensor.shape.empty() || tensor.shape.size() > 4 || !elements ||
      __builtin_mul_overflow(*elements, dtype_block_bytes(tensor.dtype), &bytes) ||
      bytes != tensor.bytes.size()) {
    fail("{}: tensor {}: {} bytes for a shape of {} in {}", file, in_quotes(tensor.name),
         tensor.bytes.size(), shape_text(tensor.shape), dtype_name(tensor.dtype));
  }
}

GgufValue typed_array(const json& array, const std::string& where) {
  const auto all = [&](auto holds) { return std::all_of(array.begin(), array.end(), holds); };
  if (all([](const json& v) { return v.is_string(); })) {
    return array.get<std::vector<std::string>>();
  }
  if (all([](const json& v) { return v.is_number_integer(); })) {
    return array.get<std::vector<int32_t>>();
  }
  if (all([](const json& v) { return v.is_number(); })) return array.get<std::vector<float>>();
  fail("{}: an array of something other than strings or numbers", where);
}

GgufValue typed_value(const json& value, const std::string& where) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return typed_array(value, where);
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > UINT32_MAX) return number;
    return static_cast<uint32_t>(number);
  }
  if (value.is_number_integer()) return value.get<int32_t>();
  if (value.is_number()) return value.get<float>();
  fail("{}: a value of type {}", where, value.type_name());
}

}  // namespace

GgufMetadata typed_metadata(const json& metadata, const std::string& name) {
  GgufMetadata out;
  for (const auto& [key, value] : metadata.items()) {
    out.emplace_back(key, typed_value(value, fmt::format("{}: key {}", name, in_quotes(key))));
  }
  return out;
}

void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                std::span<const TensorToWrite> tensors) {
  const std::string file = path.string();
  std::set<std::string> seen;
  Writer head;
  head.out = "GGUF";
  head.number<uint32_t>(3);
  head.number<uint64_t>(tensors.size());
  head.number<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    if (!seen.insert(key).second) fail("{}: key {} comes twice", file, in_quotes(key));
    head.string(key);
    head.value(value);
  }
  seen.clear();
  uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    check_tensor(tensor, file);
    if (!seen.insert(tensor.name).second) {
      fail("{}: tensor {} comes twice", file, in_quotes(tensor.name));
    }
    head.string(tensor.name);
    head.number<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d-- > 0;) head.number<uint64_t>(tensor.shape[d]);
    head.number(ggml_type(tensor, file));
    head.number(offset);
    offset += padded(tensor.bytes.size());
  }
  head.out.resize(padded(head.out.size()), '\0');
  AtomicFile out(path);
  out.write(std::string_view(head.out));
  const std::string zeros(kAlignment, '\0');
  for (const TensorToWrite& tensor : tensors) {
    out.write(tensor.bytes);
    const size_t rest = padded(tensor.bytes.size()) - tensor.bytes.size();
    out.write(std::string_view(zeros).substr(0, rest));
  }
  out.commit();
}

}  // namespace halflin
