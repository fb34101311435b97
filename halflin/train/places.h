// What stands in MLPs' places, beside a checkpoint: places.safetensors.
#pragma once

#include <filesystem>

#include "halflin/base/dtype.h"
#include "halflin/model/model.h"
#include "halflin/train/parameters.h"

namespace halflin {

// Whether any layer's place is other than its full MLP.
bool has_places(const TrainModel& model);

// Writes what the checkpoint beside it does not hold: every place's route, and the weights of cheap
// paths and gates under their parameters' names (kF32 or kBF16). Whole or not at all.
void save_places(const TrainModel& model, const std::filesystem::path& path, DType dtype);

// The places of a model that load_train_model read from `checkpoint`, which read_checkpoint opened
// with places. Throws Error naming the file and the tensor where it contradicts the model.
void load_places(const Checkpoint& checkpoint, TrainModel& model);

// FLOPs of one token; of a gated place where `full_share` of the tokens take the full MLP and the
// others the cheap path.
double place_flops(const MlpPlace& place, double full_share);

// FLOPs of one token at its average position in windows of `window` tokens; `full_shares` one a
// layer, or empty: all of a gated place's tokens take the full MLP.
FlopCount model_flops(const TrainModel& model, size_t window, std::span<const double> full_shares);

}  // namespace halflin
