// One layer of a sweep, split by split: fit, train, calibrate, test. sweep.cc walks it.
#pragma once

#include <span>
#include <vector>

#include "halflin/measure/paths.h"
#include "halflin/measure/sweep.h"
#include "halflin/measure/walk.h"

namespace halflin {

struct SweepContext : WalkContext {
  const SweepOptions& options;
};

class LayerSweep {
 public:
  LayerSweep(SweepContext& context, size_t layer);

  // Each takes its split's streams as they enter the layer and leaves them as they leave it.
  void fit(std::span<Stream> streams);
  void train(std::span<Stream> streams);
  void calibrate(std::span<Stream> streams);
  void harm(std::span<Stream> streams, const SampledGradients& gradients);
  LayerResult test(std::span<Stream> streams, const SweepBaseline& baseline);

 private:
  struct Routed;  // a variant whose tokens choose between the surrogate and the full MLP

  void fit_paths(const Moments& moments);
  void budget_threshold(std::span<Stream> streams, std::span<const Matrix<float>> differences,
                        std::span<const float> scores, std::span<const double> energies,
                        size_t gate);
  std::vector<Routed> routed_variants() const;

  SweepContext& c_;
  size_t layer_;
  CheapPath surrogate_;
  std::vector<double> mean_output_;  // [d] of f on the fit split
  double median_norm_ = 0;           // of f on the fit split
  struct NamedPath {
    std::string name;
    double fraction;
    CheapPath path;
  };
  std::vector<NamedPath> folds_;
  std::vector<NamedPath> controls_;
  std::vector<Gate> gates_;
  std::string no_gates_reason_;
  std::optional<LayerHarm> harm_;
  DeltaStats train_delta_;
  std::vector<std::vector<float>> rate_thresholds_;  // [gates][rates]
  std::vector<double> oracle_thresholds_;            // [rates] error energies
};

}  // namespace halflin
