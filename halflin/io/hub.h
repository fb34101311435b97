// Where a model's files are: a directory, a GGUF file, or a name in the Hugging Face cache.
#pragma once

#include <filesystem>
#include <string>

#include "halflin/io/tensor_file.h"

namespace halflin {

// Exactly one of the two is set.
struct ModelFiles {
  std::filesystem::path directory;  // config.json and model.safetensors or its sharded index
  std::filesystem::path gguf;
};

// `model` is a Hugging Face directory, a .gguf file (or a directory with exactly one), or a name
// such as "openai-community/gpt2-medium" or "gpt2-medium", looked up in the Hugging Face cache:
// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub. Nothing is downloaded. Throws Error saying where it looked, what is
// missing, and the command that would fetch or convert it.
ModelFiles find_model(const std::string& model);

// The tensors of what find_model found.
TensorFile open_checkpoint(const ModelFiles& files);

}  // namespace halflin
