#include "halflin/analyze/probes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halflin/analyze/resample.h"
#include "halflin/base/error.h"
#include "halflin/base/random.h"

namespace halflin {

void TypeMeans::add(std::span<const int32_t> ids, MatView<const float> x) {
  for (size_t t = 0; t < ids.size(); ++t) {
    Sum& type = types_[ids[t]];
    type.sum.resize(total_.size(), 0.0);
    type.n += 1;
    count_ += 1;
    for (size_t i = 0; i < x.cols; ++i) {
      const auto v = static_cast<double>(x(t, i));
      type.sum[i] += v;
      total_[i] += v;
    }
  }
}

Matrix<float> TypeMeans::rows(std::span<const int32_t> ids) const {
  const size_t d = total_.size();
  Matrix<float> out(ids.size(), d);
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto found = types_.find(ids[t]);
    const bool known = found != types_.end();
    const std::vector<double>& sum = known ? found->second.sum : total_;
    const double n = known ? found->second.n : std::max(count_, 1.0);
    for (size_t i = 0; i < d; ++i) out(t, i) = static_cast<float>(sum[i] / n);
  }
  return out;
}

double TypeMeans::coverage(std::span<const int32_t> ids) const {
  const auto known =
      std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return types_.contains(id); });
  return static_cast<double>(known) / static_cast<double>(std::max<size_t>(ids.size(), 1));
}

Probe train_probe(ThreadPool& pool, std::string name, MatView<const float> features,
                  std::span<const float> delta, size_t train_rows, const HeldOut& held_out) {
  Probe probe;
  probe.name = std::move(name);
  const std::vector<std::string> linear = {"linear"};
  PaperGates trained = train_paper_gates(pool, features.row_range(0, train_rows),
                                         delta.subspan(0, train_rows), linear);
  probe.reason = trained.reason;
  if (!probe.reason.empty()) return probe;
  probe.gate = std::move(trained.gates.front());
  probe.test_scores =
      gate_scores(pool, probe.gate, features.row_range(train_rows, features.rows - train_rows));
  probe.auc = auc_interval(pool, held_out.draws, probe.test_scores, held_out.labels,
                           held_out.window, held_out.options);
  return probe;
}

std::optional<Gate> train_gate_on(ThreadPool& pool, MatView<const float> x,
                                  std::span<const float> delta, size_t train_rows,
                                  const std::function<bool(size_t row)>& use) {
  std::vector<float> some(delta.begin(), delta.begin() + static_cast<std::ptrdiff_t>(train_rows));
  for (size_t t = 0; t < train_rows; ++t) {
    if (!use(t)) some[t] = std::numeric_limits<float>::quiet_NaN();  // left out
  }
  const std::vector<std::string> linear = {"linear"};
  PaperGates trained = train_paper_gates(pool, x.row_range(0, train_rows), some, linear);
  if (!trained.reason.empty()) return std::nullopt;
  return std::move(trained.gates.front());
}

Matrix<float> position_features(const AnalysisText& text) {
  Matrix<float> out(text.rows(), 3);
  for (size_t t = 0; t < text.rows(); ++t) {
    const auto position = static_cast<float>(text.position[t]);
    out(t, 0) = position;
    out(t, 1) = std::log1p(position);
    out(t, 2) = text.position[t] == 0 ? 1.f : 0.f;
  }
  return out;
}

Matrix<float> noise_features(size_t rows, size_t d, uint64_t seed, size_t layer) {
  Random random(seed, fmt::format("noise gate, layer {}", layer));
  Matrix<float> out(rows, d);
  for (float& v : out.span()) v = static_cast<float>(random.normal());
  return out;
}

GateLikeness gate_likeness(ThreadPool& pool, const Gate& a, const Gate& b, MatView<const float> x) {
  double aa = 0, bb = 0, ab = 0;
  const double n = static_cast<double>(x.rows);
  std::vector<double> sum(x.cols, 0.0), squares(x.cols, 0.0);
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t j = 0; j < x.cols; ++j) {
      const auto v = static_cast<double>(x(t, j));
      sum[j] += v;
      squares[j] += v * v;
    }
  }
  for (size_t j = 0; j < x.cols; ++j) {
    const double variance = std::max(0.0, squares[j] / n - sum[j] / n * (sum[j] / n));
    const auto u = static_cast<double>(a.weight[j]), v = static_cast<double>(b.weight[j]);
    aa += u * u * variance;
    bb += v * v * variance;
    ab += u * v * variance;
  }
  const std::vector<float> scores_a = gate_scores(pool, a, x);
  const std::vector<float> scores_b = gate_scores(pool, b, x);
  return {aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0,
          pearson(std::vector<double>(scores_a.begin(), scores_a.end()),
                  std::vector<double>(scores_b.begin(), scores_b.end()))};
}

}  // namespace halflin
