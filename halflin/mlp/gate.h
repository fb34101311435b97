// Gates: which tokens may take the linear path. Those of the paper (arXiv 2603.03459), trained on
// loss differences, and harm gates, which predict the surrogate's error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"
#include "halflin/mlp/least_squares.h"
#include "halflin/ops/linear.h"

namespace halflin {

// However it was trained, a gate is one affine score of the raw MLP input x: the token takes the
// linear path when x . weight + bias > threshold. Or of a hidden layer (the paper's phase 2):
// gelu(hidden x + hidden_bias) . weight + bias, the exact GELU.
struct Gate {
  std::string name;
  std::vector<float> weight;  // [d], or [units] behind a hidden layer
  float bias = 0;
  float threshold = 0;
  size_t params = 0;                 // as the paper counts
  std::vector<float> hidden{};       // [units, d], or empty
  std::vector<float> hidden_bias{};  // [units], or empty

  // Features that it reads, d.
  size_t inputs() const;
};

// The score of one x [d]; summed in float64 in a fixed order, so that no vector width and no number
// of threads changes a route.
float gate_score(const Gate& gate, const float* x);
// The same of rows x [T, d] by several gates, in one pass over the rows: scores [T, gates].
void score_rows(std::span<const Gate* const> gates, Operand x, MatView<float> scores);
// Floating-point operations of one token's score.
double gate_flops(const Gate& gate);

// What the paper prints of delta = loss with the surrogate - loss of the model, in nats a token.
struct DeltaStats {
  size_t count = 0;    // finite ones
  size_t dropped = 0;  // NaN and Inf
  double median = 0;
  double mean = 0;
  double sd = 0;              // population
  double pct_beneficial = 0;  // delta < 0
};
DeltaStats delta_statistics(std::span<const float> delta);

// The paper's labels: 1 ("linear is fine") where delta <= the median; where under 5 % of the deltas
// are below 0, the cut is the 25th percentile (both interpolated as numpy does).
struct DeltaLabels {
  DeltaStats stats;
  double cut = 0;
  std::vector<int8_t> label;  // [T] 1, 0, or -1 where the delta is NaN or Inf
  std::string reason;         // why no gate can be trained, or empty
};
DeltaLabels label_by_delta(std::span<const float> delta);

// The paper's gates: features standardised; `linear` is a logistic regression on them (d + 1
// parameters), `b1`, `b3`, `b6` one on their first k = min(2 b, 32, d) principal components
// (d k + 2 k + 1). Probability > 0.5 is score > 0, hence threshold 0.
struct PaperGates {
  DeltaStats stats;
  double cut = 0;
  std::vector<Gate> gates;       // in the order of `names`; empty where there is a reason
  std::vector<double> accuracy;  // of each gate on the rows it was trained on
  std::string reason;            // why there are none: fewer than 100 finite deltas, or one class
};
// x is [T, d], delta [T]; `names` are of the form "linear" or "b<number>". `moments`, where given,
// are of exactly these rows x (targets do not matter) and save their computation; they are ignored
// where a delta is not finite. Throws Error on shapes, unknown names, NaN or Inf in x.
PaperGates train_paper_gates(ThreadPool& pool, MatView<const float> x, std::span<const float> delta,
                             std::span<const std::string> names, const Moments* moments = nullptr);

// What to regress for a harm gate: log |g(x_t) - f(x_t)|^2. Energies of 0 (or tiny ones that are
// rounding) are raised to 1e-9 of the median energy. NaN stays NaN. [T, 1]
Matrix<float> log_error_energy(std::span<const double> energy);

// The harm gate: ridge regression of the log error energy on standardised
// x, in closed form. Its score is the predicted log error energy, negated: the larger, the safer
// the linear path. `moments` are of x and one target column, the log energy. The penalty is
// `ridge_per_row` x rows on standardised features: the default 1e-3 takes directions that hold less
// than a thousandth of a feature's variance for noise. (SmolLM2-135M layer 15, 16,700 rows:
// held-out R^2 of the log energy is 0.837 from 1e-5 to 1e-3, 0.834 at 1e-2, 0.80 at 0.1.) The
// threshold is 0, and is to be calibrated.
Gate harm_gate(ThreadPool& pool, const Moments& moments, double ridge_per_row = 1e-3);

// The same from rows: x [T, d], energy [T]. `x_moments`, where given, are of exactly these rows.
Gate harm_gate(ThreadPool& pool, MatView<const float> x, std::span<const double> energy,
               const Moments* x_moments = nullptr, double ridge_per_row = 1e-3);

// gate_score of each row, [T].
std::vector<float> gate_scores(ThreadPool& pool, const Gate& gate, MatView<const float> x);

// The threshold that round(rate x T) of these scores exceed: halfway between two neighbours in
// order. Where equal scores straddle the cut, the side that comes closer to the rate (of equals,
// the lower rate). Rate 0 and below: no score exceeds it; rate 1 and above: all do. NaN never
// exceeds.
float threshold_for_rate(std::span<const float> scores, double rate);

// Share of scores above the threshold, in [0, 1]; 0 without scores.
double rate_above(std::span<const float> scores, float threshold);

}  // namespace halflin
