// The result of a linearisation as JSON (docs/formats.md): perplexities with paired intervals.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "halflin/measure/statistics.h"
#include "halflin/model/config.h"
#include "halflin/train/linearize.h"

namespace halflin {

// Raised whenever a key of the result changes its meaning.
inline constexpr int kLinearizeSchema = 1;

// Everything that was measured, as the functions of linearize.h return it.
struct LinearizeFigures {
  nlohmann::json original;
  std::vector<nlohmann::json> stages;
  std::vector<nlohmann::json> control;  // empty: none was asked for
  nlohmann::json soft, hard;            // null: no second phase
};

struct LinearizeStatistics {
  size_t draws = 10000;
  uint64_t seed = 0;
  IntervalOptions interval;
};

// One stage, with the perplexities of the first held-out text before, after the replacement and
// after training, and `control`'s after the same steps where there is one (else null).
nlohmann::json stage_result(const LinearizeRun& run, const LinearizeFigures& figures, size_t stage,
                            const LinearizeStatistics& statistics);

// Adds "held_out", "stages" and "models" to the header. `units` of the gates' hidden layer.
nlohmann::json linearize_result(const nlohmann::json& header, const LinearizeRun& run,
                                const LinearizeFigures& figures, size_t units,
                                const LinearizeStatistics& statistics);

}  // namespace halflin
