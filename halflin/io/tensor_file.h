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
  // GGUF key-values by their full key ("llama.block_count"), strings byte for byte as stored (they
  // may be no UTF-8); or safetensors' __metadata__; or the "metadata" of a sharded index.
  nlohmann::json metadata;
  // Tensors in formats that hold no weights we read (BOOL, I64, F64, F8_E4M3, ...): name -> format.
  // They are checked like the others. U8 tensors are in `tensors`.
  std::map<std::string, std::string> unread;
  std::string path;  // what was opened, for messages
  std::vector<std::shared_ptr<MappedFile>> mappings;

  const TensorInfo* find(const std::string& name) const;
  // Throws Error naming the file and the tensor, also for one of `unread`.
  const TensorInfo& at(const std::string& name) const;
};

// All of these throw Error, one line that names the file, the place (a tensor, a key, a byte
// offset), what was expected and what was found.

// One .safetensors file. Tensors fill the data section without overlap or gap, as the format
// demands.
TensorFile open_safetensors(const std::filesystem::path& path);
// model.safetensors.index.json: every shard it names, checked against the map it holds.
TensorFile open_safetensors_index(const std::filesystem::path& index_path);
// A GGUF file, versions 2 and 3, little-endian, not split over several files.
TensorFile open_gguf(const std::filesystem::path& path);

// Parse from memory: what the functions above and the fuzzers call. `name` is used in messages.
TensorFile parse_safetensors(std::span<const std::byte> file, const std::string& name);
TensorFile parse_gguf(std::span<const std::byte> file, const std::string& name);

// Converts or dequantises elements [begin, begin + out.size()) to float32; `begin` and out.size()
// are whole blocks of the tensor's format and lie inside it. Values equal ggml's reference
// dequantisation. Throws Error naming file, tensor and element on NaN or Inf, and for U8 tensors.
void read_f32(const TensorInfo& tensor, size_t begin, std::span<float> out);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;  // kF32, kF16, kBF16 or kU8
  std::vector<size_t> shape;
  std::span<const std::byte> bytes;
};
// Writes a safetensors file whole or not at all (temporary file, fsync, rename), data in the order
// of `tensors`. Throws Error when a tensor's size contradicts its shape, a name comes twice, or
// writing fails.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata);

// Names a checkpoint's contents: the sha256 of its file; of several files, the sha256 of their
// "file name:sha256\n" lines in order of name. Throws Error for a TensorFile that maps no file.
std::string sha256_files(const TensorFile& checkpoint);

}  // namespace halflin
