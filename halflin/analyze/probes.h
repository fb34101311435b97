// Gates trained on parts of the MLP's input: which part tells the tokens that need the MLP apart?
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "halflin/analyze/texts.h"
#include "halflin/measure/statistics.h"
#include "halflin/mlp/gate.h"

namespace halflin {

// Mean of x by token, over windows that nothing else is trained or tested on.
class TypeMeans {
 public:
  explicit TypeMeans(size_t d) : total_(d, 0.0) {}
  void add(std::span<const int32_t> ids, MatView<const float> x);
  // Each row's token's mean, or the overall mean for tokens never added; [T, d].
  Matrix<float> rows(std::span<const int32_t> ids) const;
  // Share of these tokens that have a mean of their own.
  double coverage(std::span<const int32_t> ids) const;

 private:
  struct Sum {
    double n = 0;
    std::vector<double> sum;
  };
  std::unordered_map<int32_t, Sum> types_;
  std::vector<double> total_;
  double count_ = 0;
};

// The paper's linear gate on some features: trained on the text's train rows, judged on its test
// rows. Labels come from delta as the paper's do, on each split by its own median.
struct Probe {
  std::string name;
  std::string reason;  // why there is no gate, or empty
  Gate gate;
  std::vector<float> test_scores;  // [test rows]
  Interval auc;                    // held out
};
struct HeldOut {
  std::span<const int8_t> labels;    // [test rows]
  std::span<const uint32_t> window;  // [test rows] in [0, draws.windows)
  const BootstrapDraws& draws;
  IntervalOptions options;
};
// `features` [T, k] of all rows, `delta` [T].
Probe train_probe(ThreadPool& pool, std::string name, MatView<const float> features,
                  std::span<const float> delta, size_t train_rows, const HeldOut& held_out);

// Rows of the train split where use(row) holds; the gate, or nothing where it cannot be trained.
std::optional<Gate> train_gate_on(ThreadPool& pool, MatView<const float> x,
                                  std::span<const float> delta, size_t train_rows,
                                  const std::function<bool(size_t row)>& use);

// Place in the window, its logarithm, and whether it is the first: [T, 3].
Matrix<float> position_features(const AnalysisText& text);
// Standard normal numbers: what a gate of d + 1 parameters makes of nothing. [rows, d]
Matrix<float> noise_features(size_t rows, size_t d, uint64_t seed, size_t layer);

// How alike two gates of the same input are: the cosine of their weights on features brought to
// the variance they have in x, and the correlation of their scores over x.
struct GateLikeness {
  double cosine = 0;
  double score_correlation = 0;
};
GateLikeness gate_likeness(ThreadPool& pool, const Gate& a, const Gate& b, MatView<const float> x);

}  // namespace halflin
