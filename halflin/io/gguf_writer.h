// GGUF files out: see tensor_file.h for the way in.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "halflin/io/tensor_file.h"

namespace halflin {

// The types that keys of models and tokenizers have.
using GgufValue = std::variant<bool, uint32_t, int32_t, uint64_t, float, std::string,
                               std::vector<std::string>, std::vector<int32_t>, std::vector<float>>;
// In the order of the file.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

// Metadata that parse_gguf read, with the types that files give such values: whole numbers 32 bits
// wide (64 where they need it, signed in arrays), others float32. Throws Error (`name` opens the
// message) for arrays in arrays and of mixed types.
GgufMetadata typed_metadata(const nlohmann::json& metadata, const std::string& name);

// Writes the file whole or not at all, version 3. Throws Error when a tensor is neither F32, F16
// nor BF16, its size contradicts its shape, a name or key comes twice, or writing fails.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                std::span<const TensorToWrite> tensors);

// tokenizer.ggml.* of the byte-level BPE tokenizer in `directory` (tokenizer.json and
// tokenizer_config.json), and its chat template, for `vocab` rows of embedding. Throws Error naming
// what GGUF, or its readers, have no name for.
GgufMetadata tokenizer_metadata(const std::filesystem::path& directory, size_t vocab);

}  // namespace halflin
