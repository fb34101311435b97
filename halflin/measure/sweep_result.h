// A sweep's results as JSON: what is kept of each layer, and the whole with its verdicts.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "halflin/measure/run.h"
#include "halflin/measure/sweep.h"

namespace halflin {

// Raised whenever a key changes its meaning.
inline constexpr int kSweepSchema = 1;

// baseline_ppl with its interval, predictions, windows.
nlohmann::json baseline_json(const SweepBaseline& baseline, const SweepOptions& options);

// One layer's figures, each with ci_lo, ci_hi beside it. Verdicts need the other layers and are
// added by assemble_sweep.
nlohmann::json layer_json(const LayerResult& layer, const SweepBaseline& baseline,
                          const SweepOptions& options);

// The result file: `header`, the baseline, and the layers in order, with Holm's adjustment of the
// p-values over the layers and a verdict for each replacement:
//   better     the interval lies below 0 and the adjusted p-value is below 0.05
//   free       the interval lies below +1 % (the paper's "under 1 % cost")
//   costs      the interval lies above 0 and the adjusted p-value is below 0.05
//   undecided  none of these, or too few windows
// And, of three layers or more, how well the predicted harm ranks them.
nlohmann::json assemble_sweep(const nlohmann::json& header, const nlohmann::json& baseline,
                              const std::vector<nlohmann::json>& layers, size_t layers_asked);

// A sweep's directory (run.h):
//   run.json                   the header: what identifies the run
//   baseline.json              the dense model's figures
//   tokens.safetensors         id, sequence, loss [tokens] of the test split, float32
//   layers/012.json            one layer's figures
//   layers/012.safetensors     delta, error_energy, score.<gate> [tokens], float32
//   result.json                all of the figures, with verdicts
class SweepStore {
 public:
  // Throws Error as RunStore does.
  SweepStore(std::filesystem::path directory, const nlohmann::json& header);

  std::optional<nlohmann::json> baseline() const;
  std::optional<nlohmann::json> layer(size_t layer) const;
  std::vector<nlohmann::json> finished(std::span<const size_t> layers) const;
  void save_baseline(const SweepBaseline& baseline, const SweepOptions& options) const;
  // Returns what layer() gives from then on.
  nlohmann::json save_layer(const LayerResult& layer, const SweepBaseline& baseline,
                            const SweepOptions& options) const;
  void save_result(const nlohmann::json& result) const;
  std::filesystem::path result_path() const { return store_.path("result.json"); }

 private:
  RunStore store_;
};

}  // namespace halflin
