// A model's configuration as Hugging Face's config.json.
#pragma once

#include <nlohmann/json.hpp>

#include "halflin/train/parameters.h"

namespace halflin {

// For a model that came without a config.json: from scratch, or from GGUF. parse_config reads back
// an equal configuration. Throws Error for what the family's config.json cannot say: scaled rotary
// frequencies other than linear ones, biases in some layers' places only.
nlohmann::json hf_config(const TrainModel& model);

}  // namespace halflin
