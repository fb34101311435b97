// Weights between checkpoints and training: read from any checkpoint that the loader takes, written
// back under Hugging Face's names and in its layout.
#pragma once

#include <filesystem>

#include "halflin/model/model.h"
#include "halflin/train/parameters.h"

namespace halflin {

// All weights frozen; see set_trainable. Throws Error naming file and tensor on NaN or Inf, and
// where max_window exceeds the model's positions.
TrainModel load_train_model(ThreadPool& pool, const Checkpoint& checkpoint, size_t max_window);

// A tensor as the checkpoint stores it.
struct StoredTensor {
  std::string name;
  std::vector<size_t> shape;
  Matrix<float> values;
};
// The model's values, or its gradients (frozen ones left out), as `layout` stores them. Of an MLP's
// place only the full MLP has a place in a checkpoint; where there is none, its tensors are left
// out.
std::vector<StoredTensor> stored_tensors(const TrainModel& model, const TensorLayout& layout,
                                         bool gradients);

// Writes model.safetensors (kF32 or kBF16) and config.json into `directory`, so that Hugging Face
// and halflin load it. Of a Hugging Face checkpoint the tensor names, config.json (its "dtype"
// adjusted) and the tokenizer's files are taken over; for a GGUF checkpoint names, configuration
// and tokenizer are made anew (see hf_config, export_tokenizer). `changes` are put into a
// config.json that was taken over. model.safetensors comes last and whole or not at all.
void save_train_model(const TrainModel& model, const Checkpoint& checkpoint,
                      const std::filesystem::path& directory, DType dtype,
                      const nlohmann::json& changes = nlohmann::json::object());

// The same for a model that came from no checkpoint; the tokenizer is the caller's to write.
void save_new_model(const TrainModel& model, const std::filesystem::path& directory, DType dtype);

}  // namespace halflin
