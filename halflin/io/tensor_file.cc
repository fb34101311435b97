#include "halflin/io/tensor_file.h"

#include <set>

#include "halflin/base/error.h"
#include "halflin/io/checked.h"
#include "halflin/io/mapped_file.h"
#include "halflin/io/printable.h"
#include "halflin/io/sha256.h"

namespace halflin {

std::string shape_text(std::span<const size_t> shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  }
  return text + "]";
}

// Both readers have checked that the product does not overflow.
size_t TensorInfo::elements() const { return checked_product(shape).value_or(0); }

const TensorInfo* TensorFile::find(const std::string& name) const {
  const auto at = tensors.find(name);
  return at == tensors.end() ? nullptr : &at->second;
}

const TensorInfo& TensorFile::at(const std::string& name) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  const auto other = unread.find(name);
  if (other != unread.end()) {
    fail("{}: tensor {}: expected weights in a supported format, found {}", path, in_quotes(name),
         other->second);
  }
  fail("{}: tensor {}: expected in the file, found missing", path, in_quotes(name));
}

std::string sha256_files(const TensorFile& checkpoint) {
  const auto& files = checkpoint.mappings;
  if (files.empty()) fail("{}: no file to hash", checkpoint.path);
  if (files.size() == 1) return sha256_hex(files[0]->bytes());
  std::set<std::string> lines;
  for (const auto& file : files) {
    const std::string name = std::filesystem::path(file->path()).filename().string();
    lines.insert(fmt::format("{}:{}\n", name, sha256_hex(file->bytes())));
  }
  Sha256 all;
  for (const std::string& line : lines) all.update(std::as_bytes(std::span(line)));
  return all.hex();
}

}  // namespace halflin
