#include "halflin/mlp/gate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>

#include "halflin/base/error.h"
#include "halflin/mlp/logistic.h"
#include "halflin/ops/dots.h"

namespace halflin {
namespace {

constexpr size_t kFewestDeltas = 100;
constexpr size_t kMostComponents = 32;

// numpy.percentile's linear interpolation, on sorted values.
double quantile(std::span<const double> sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (position - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

std::vector<double> sorted_finite(std::span<const float> delta) {
  std::vector<double> values;
  values.reserve(delta.size());
  for (const float v : delta) {
    if (std::isfinite(v)) values.push_back(static_cast<double>(v));
  }
  std::sort(values.begin(), values.end());
  return values;
}

DeltaStats statistics_of(std::span<const double> sorted, size_t total) {
  DeltaStats out;
  out.count = sorted.size();
  out.dropped = total - sorted.size();
  if (sorted.empty()) return out;
  const double n = static_cast<double>(sorted.size());
  for (const double v : sorted) {
    out.mean += v;
    out.pct_beneficial += v < 0;
  }
  out.mean /= n;
  out.pct_beneficial *= 100 / n;
  for (const double v : sorted) out.sd += (v - out.mean) * (v - out.mean);
  out.sd = std::sqrt(out.sd / n);
  out.median = quantile(sorted, 0.5);
  return out;
}

// Principal components to project on: 0 for `linear`, min(2 b, 32, d) for "b<number>".
size_t components_of(const std::string& name, size_t d) {
  if (name == "linear") return 0;
  size_t b = 0;
  const char* end = name.data() + name.size();
  if (name.size() > 1 && name[0] == 'b') {
    const auto [stop, error] = std::from_chars(name.data() + 1, end, b);
    if (error == std::errc() && stop == end && b > 0) {
      return std::min({2 * std::min(b, kMostComponents), kMostComponents, d});
    }
  }
  fail("gate: expected a name such as linear, b1, b3 or b6, found {}", name);
}

// A score w . (x - mean) / scale + intercept, folded into one affine score of x.
Gate fold(std::string name, std::span<const double> weight, double intercept,
          const Standardized& standard, size_t params) {
  Gate gate;
  gate.name = std::move(name);
  gate.weight.resize(weight.size());
  double bias = intercept;
  for (size_t j = 0; j < weight.size(); ++j) {
    const double raw = weight[j] / standard.scale[j];
    gate.weight[j] = static_cast<float>(raw);
    bias -= raw * standard.mean[j];
  }
  gate.bias = static_cast<float>(bias);
  gate.params = params;
  return gate;
}

// Standardised x on `vectors`, [T, k]: (x - mean) / scale times vectors.
Matrix<double> project(ThreadPool& pool, MatView<const float> x, const Standardized& standard,
                       MatView<const double> vectors) {
  const size_t k = vectors.cols;
  Matrix<double> scaled(x.cols, k);
  for (size_t j = 0; j < x.cols; ++j) {
    for (size_t c = 0; c < k; ++c) scaled(j, c) = vectors(j, c) / standard.scale[j];
  }
  Matrix<double> z(x.rows, k);
  constexpr size_t kRowsPerTask = 256;
  pool.parallel_for((x.rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, int) {
    const size_t end = std::min(x.rows, (task + 1) * kRowsPerTask);
    for (size_t t = task * kRowsPerTask; t < end; ++t) {
      const float* row = x.row(t);
      double* out = z.row(t);
      for (size_t j = 0; j < x.cols; ++j) {
        const double v = static_cast<double>(row[j]) - standard.mean[j];
        const double* weights = scaled.row(j);
        for (size_t c = 0; c < k; ++c) out[c] += v * weights[c];
      }
    }
  });
  return z;
}

double accuracy_of(ThreadPool& pool, const Gate& gate, MatView<const float> x,
                   std::span<const int8_t> label) {
  const std::vector<float> scores = gate_scores(pool, gate, x);
  size_t right = 0, used = 0;
  for (size_t t = 0; t < label.size(); ++t) {
    if (label[t] < 0) continue;
    ++used;
    right += (scores[t] > gate.threshold) == (label[t] > 0);
  }
  return static_cast<double>(right) / static_cast<double>(std::max<size_t>(used, 1));
}

}  // namespace

DeltaStats delta_statistics(std::span<const float> delta) {
  return statistics_of(sorted_finite(delta), delta.size());
}

DeltaLabels label_by_delta(std::span<const float> delta) {
  const std::vector<double> sorted = sorted_finite(delta);
  DeltaLabels out;
  out.stats = statistics_of(sorted, delta.size());
  out.label.assign(delta.size(), -1);
  if (sorted.size() < kFewestDeltas) {
    out.reason = fmt::format("only {} finite loss differences (at least {} needed)", sorted.size(),
                             kFewestDeltas);
    return out;
  }
  out.cut = out.stats.pct_beneficial < 5 ? quantile(sorted, 0.25) : out.stats.median;
  size_t ones = 0;
  for (size_t t = 0; t < delta.size(); ++t) {
    if (!std::isfinite(delta[t])) continue;
    out.label[t] = static_cast<double>(delta[t]) <= out.cut ? 1 : 0;
    ones += out.label[t] == 1;
  }
  if (ones == sorted.size()) out.reason = "every token falls in one class";
  return out;
}

PaperGates train_paper_gates(ThreadPool& pool, MatView<const float> x, std::span<const float> delta,
                             std::span<const std::string> names, const Moments* moments) {
  if (delta.size() != x.rows) {
    fail("gate: {} rows but {} loss differences", x.rows, delta.size());
  }
  size_t most = 0;
  for (const std::string& name : names) most = std::max(most, components_of(name, x.cols));

  DeltaLabels labels = label_by_delta(delta);
  PaperGates out;
  out.stats = labels.stats;
  out.cut = labels.cut;
  out.reason = std::move(labels.reason);
  if (!out.reason.empty()) return out;

  Moments own;
  if (moments == nullptr || labels.stats.dropped != 0) {
    std::vector<uint8_t> keep(x.rows);
    for (size_t t = 0; t < x.rows; ++t) keep[t] = labels.label[t] >= 0;
    own = Moments(x.cols, 0);
    own.add(pool, x, {}, keep);
    moments = &own;
  } else if (moments->n != x.rows || moments->mean_x.size() != x.cols) {
    fail("gate: moments of {} rows x {}, but x is {} x {}", moments->n, moments->mean_x.size(),
         x.rows, x.cols);
  }
  const Standardized standard = standardize(*moments);

  // Components of the correlation matrix; each gate takes the first few columns of one projection.
  Eigenpairs components;
  Matrix<double> z;
  if (most > 0) {
    components = top_eigenpairs(standard.gram.view(), most);
    z = project(pool, x, standard, components.vectors.view());
  }
  for (const std::string& name : names) {
    const size_t k = components_of(name, x.cols);
    if (k == 0) {
      const Logistic fit = fit_logistic(pool, x, labels.label, standard);
      out.gates.push_back(fold(name, fit.weight, fit.intercept, standard, x.cols + 1));
    } else {
      const Logistic fit = fit_logistic(pool, z.view().col_range(0, k), labels.label);
      std::vector<double> weight(x.cols, 0.0);
      for (size_t j = 0; j < x.cols; ++j) {
        for (size_t c = 0; c < k; ++c) weight[j] += components.vectors(j, c) * fit.weight[c];
      }
      out.gates.push_back(fold(name, weight, fit.intercept, standard, x.cols * k + k + k + 1));
    }
    out.accuracy.push_back(accuracy_of(pool, out.gates.back(), x, labels.label));
  }
  return out;
}

Matrix<float> log_error_energy(std::span<const double> energy) {
  std::vector<double> sorted;
  sorted.reserve(energy.size());
  for (const double e : energy) {
    if (std::isfinite(e) && e > 0) sorted.push_back(e);
  }
  double floor = std::numeric_limits<double>::min();
  if (!sorted.empty()) {
    const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    floor = std::max(floor, 1e-9 * *middle);
  }
  Matrix<float> out(energy.size(), 1);
  for (size_t t = 0; t < energy.size(); ++t) {
    const double e = energy[t] < floor ? floor : energy[t];
    out(t, 0) = static_cast<float>(std::log(e));
  }
  return out;
}

Gate harm_gate(ThreadPool& pool, const Moments& moments, double ridge_per_row) {
  if (moments.mean_y.size() != 1) {
    fail("harm gate: expected one target, found {}", moments.mean_y.size());
  }
  if (!std::isfinite(moments.mean_y[0])) fail("harm gate: the error energies hold NaN or Inf");
  const size_t d = moments.mean_x.size();
  const Standardized standard = standardize(moments);
  std::vector<double> weight(d);
  for (size_t j = 0; j < d; ++j) weight[j] = -moments.xy(j, 0) / standard.scale[j];
  const SpdFactor factor =
      factor_spd(standard.gram.view(), ridge_per_row * static_cast<double>(moments.n));
  solve_in_place(pool, factor, {weight.data(), d, 1});
  // Features without variance take no part, whatever rounding left in their products.
  for (size_t j = 0; j < d; ++j) {
    if (standard.gram(j, j) == 0) weight[j] = 0;
  }
  return fold("harm", weight, -moments.mean_y[0], standard, d + 1);
}

Gate harm_gate(ThreadPool& pool, MatView<const float> x, std::span<const double> energy,
               const Moments* x_moments, double ridge_per_row) {
  const Matrix<float> target = log_error_energy(energy);
  if (x_moments != nullptr) {
    return harm_gate(pool, with_targets(pool, *x_moments, x, target.view()), ridge_per_row);
  }
  Moments moments(x.cols, 1);
  moments.add(pool, x, target.view());
  return harm_gate(pool, moments, ridge_per_row);
}

size_t Gate::inputs() const {
  return hidden_bias.empty() ? weight.size() : hidden.size() / hidden_bias.size();
}

namespace {

size_t dots_of(const Gate& gate) { return std::max<size_t>(gate.hidden_bias.size(), 1); }

void add_dots(const Gate& gate, std::vector<const float*>& weights) {
  if (gate.hidden_bias.empty()) weights.push_back(gate.weight.data());
  for (size_t u = 0; u < gate.hidden_bias.size(); ++u) {
    weights.push_back(gate.hidden.data() + u * gate.inputs());
  }
}

// From x's dots, with the weights or with each unit's.
float score_of(const Gate& gate, const double* dot) {
  auto score = static_cast<double>(gate.bias);
  if (gate.hidden_bias.empty()) score += dot[0];
  for (size_t u = 0; u < gate.hidden_bias.size(); ++u) {
    const double z = dot[u] + static_cast<double>(gate.hidden_bias[u]);
    score += static_cast<double>(gate.weight[u]) * 0.5 * z * (1 + std::erf(z * M_SQRT1_2));
  }
  return static_cast<float>(score);
}

}  // namespace

float gate_score(const Gate& gate, const float* x) {
  const MatView<const float> row(x, 1, gate.inputs());
  if (gate.hidden_bias.empty()) {  // what a token in decoding meets: nothing is allocated
    const float* weight = gate.weight.data();
    double sum = 0;
    dots(row, {&weight, 1}, {&sum, 1, 1});
    return score_of(gate, &sum);
  }
  const Gate* gates[] = {&gate};
  float score = 0;
  score_rows(gates, row, {&score, 1, 1});
  return score;
}

void score_rows(std::span<const Gate* const> gates, Operand x, MatView<float> scores) {
  std::vector<const float*> weights;
  for (const Gate* gate : gates) add_dots(*gate, weights);
  Matrix<double> sums(x.rows, weights.size());
  dots(x, weights, sums.view());
  for (size_t t = 0; t < x.rows; ++t) {
    const double* sum = sums.row(t);
    for (size_t g = 0; g < gates.size(); ++g) {
      scores(t, g) = score_of(*gates[g], sum);
      sum += dots_of(*gates[g]);
    }
  }
}

double gate_flops(const Gate& gate) {
  return 2 * static_cast<double>(gate.weight.size() + gate.hidden.size());
}

std::vector<float> gate_scores(ThreadPool& pool, const Gate& gate, MatView<const float> x) {
  if (gate.inputs() != x.cols) {
    fail("gate {}: expected {} features, found {}", gate.name, gate.inputs(), x.cols);
  }
  constexpr size_t kRowsPerTask = 256;
  std::vector<float> scores(x.rows);
  pool.parallel_for((x.rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, int) {
    const size_t begin = task * kRowsPerTask;
    const size_t count = std::min(x.rows - begin, kRowsPerTask);
    const Gate* gates[] = {&gate};
    score_rows(gates, x.row_range(begin, count), {scores.data() + begin, count, 1});
  });
  return scores;
}

float threshold_for_rate(std::span<const float> scores, double rate) {
  if (std::isnan(rate)) fail("gate: the rate of linear tokens is not a number");
  if (rate <= 0 || scores.empty()) return std::numeric_limits<float>::max();
  if (rate >= 1) return std::numeric_limits<float>::lowest();
  std::vector<float> sorted;
  sorted.reserve(scores.size());
  for (const float s : scores) {
    sorted.push_back(std::isnan(s) ? -std::numeric_limits<float>::infinity() : s);
  }
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const auto wanted = static_cast<size_t>(std::lround(rate * static_cast<double>(sorted.size())));
  if (wanted >= sorted.size()) return std::numeric_limits<float>::lowest();
  // The cut falls before sorted[cut]; equal scores move it to where a run of them begins or ends.
  size_t cut = wanted;
  if (wanted > 0 && sorted[wanted - 1] == sorted[wanted]) {
    const auto [first, last] =
        std::equal_range(sorted.begin(), sorted.end(), sorted[wanted], std::greater<>());
    const auto below = static_cast<size_t>(first - sorted.begin());
    const auto above = static_cast<size_t>(last - sorted.begin());
    cut = wanted - below <= above - wanted ? below : above;
  }
  if (cut == 0) return sorted[0];
  if (cut == sorted.size()) return std::numeric_limits<float>::lowest();
  const float high = sorted[cut - 1];
  const float low = std::max(sorted[cut], std::numeric_limits<float>::lowest());
  const float middle = low + (high - low) / 2;
  return middle < high ? middle : low;
}

double rate_above(std::span<const float> scores, float threshold) {
  if (scores.empty()) return 0;
  size_t above = 0;
  for (const float s : scores) above += s > threshold;
  return static_cast<double>(above) / static_cast<double>(scores.size());
}

}  // namespace halflin
