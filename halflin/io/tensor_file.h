// io/: files in and out: checkpoints, tokenizers, texts, results. Nothing here knows a model.
//
// Tensors of a checkpoint, memory-mapped, whatever the container. Both readers check every length,
// offset, shape and count against the file before anything is allocated or read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "halflin/base/dtype.h"

namespace halflin {

class MappedFile;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<size_t> shape;  // row-major, outermost first; GGUF's order is reversed to match
  std::span<const std::byte> bytes;
  std::string file;  // path, for messages

  size_t elements() const;
};

// Copyable; the mappings live as long as one copy does.
struct TensorFile {
  std::map<std::string, TensorInfo> tensors;
  nlohmann::json metadata;  // GGUF key-values, or safetensors' __metadata__
  std::string path;         // what was opened, for messages
  std::vector<std::shared_ptr<MappedFile>> mappings;

  const TensorInfo* find(const std::string& name) const;
  // Throws Error naming the file and the tensor.
  const TensorInfo& at(const std::string& name) const;
};

// One .safetensors file.
TensorFile open_safetensors(const std::filesystem::path& path);
// model.safetensors.index.json: every shard it names, checked against the map it holds.
TensorFile open_safetensors_index(const std::filesystem::path& index_path);
// A GGUF file, versions 2 and 3, little-endian.
TensorFile open_gguf(const std::filesystem::path& path);

// Parse from memory: what the functions above and the fuzzers call. `name` is used in messages.
TensorFile parse_safetensors(std::span<const std::byte> file, const std::string& name);
TensorFile parse_gguf(std::span<const std::byte> file, const std::string& name);

// Converts or dequantises elements [begin, begin + out.size()) to float32; `begin` and out.size()
// are whole blocks of the tensor's format. Throws Error naming tensor and element on NaN or Inf.
void read_f32(const TensorInfo& tensor, size_t begin, std::span<float> out);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;  // kF32 or kBF16
  std::vector<size_t> shape;
  std::span<const std::byte> bytes;
};
// Writes a safetensors file whole or not at all (temporary file, fsync, rename).
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace halflin
