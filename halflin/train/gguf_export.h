// A model as one GGUF file.
#pragma once

#include <filesystem>

#include "halflin/model/model.h"
#include "halflin/train/parameters.h"

namespace halflin {

// Writes `model`, whose places are full MLPs and which was read from `checkpoint`, with matrices as
// kF32 or kBF16 and vectors as kF32, so that llama.cpp and halflin load it. Of a GGUF checkpoint
// the metadata is taken over; for a Hugging Face checkpoint it is made anew, from configuration and
// tokenizer. Throws Error naming what the format, or its readers, have no way to say.
void save_gguf(TrainModel& model, const Checkpoint& checkpoint, const std::filesystem::path& path,
               DType dtype);

}  // namespace halflin
