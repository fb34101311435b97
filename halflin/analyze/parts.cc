#include "halflin/analyze/parts.h"

#include <algorithm>
#include <cmath>

namespace halflin {

namespace {

double mean_of(std::span<const float> row) {
  double sum = 0;
  for (const float v : row) sum += static_cast<double>(v);
  return sum / static_cast<double>(row.size());
}

struct Spread {
  double sum = 0, squares = 0;
  void add(double v) { sum += v, squares += v * v; }
  double mean(double n) const { return sum / n; }
  double sd(double n) const {
    return std::sqrt(std::max(0.0, squares / n - (sum / n) * (sum / n)));
  }
};

}  // namespace

InputParts raw_parts(MatView<const float> embedding, MatView<const float> x) {
  InputParts parts{Matrix<float>(x.rows, x.cols), Matrix<float>(x.rows, x.cols)};
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t i = 0; i < x.cols; ++i) {
      parts.token(t, i) = embedding(t, i);
      parts.context(t, i) = x(t, i) - embedding(t, i);
    }
  }
  return parts;
}

InputParts frozen_parts(const Norm& norm, MatView<const float> embedding, MatView<const float> h) {
  const bool centred = norm.kind == NormKind::kLayerNorm;
  const double d = static_cast<double>(h.cols);
  InputParts parts{Matrix<float>(h.rows, h.cols), Matrix<float>(h.rows, h.cols)};
  for (size_t t = 0; t < h.rows; ++t) {
    const double mean_h = centred ? mean_of(h.row_span(t)) : 0;
    const double mean_e = centred ? mean_of(embedding.row_span(t)) : 0;
    double variance = 0;
    for (const float v : h.row_span(t)) {
      variance += (static_cast<double>(v) - mean_h) * (static_cast<double>(v) - mean_h);
    }
    const double scale = 1 / std::sqrt(variance / d + static_cast<double>(norm.epsilon));
    for (size_t i = 0; i < h.cols; ++i) {
      const double w = scale * static_cast<double>(norm.weight[i]);
      const double e = static_cast<double>(embedding(t, i));
      parts.token(t, i) = static_cast<float>((e - mean_e) * w);
      parts.context(t, i) =
          static_cast<float>((static_cast<double>(h(t, i)) - e - (mean_h - mean_e)) * w);
    }
  }
  return parts;
}

PartGeometry part_geometry(const InputParts& parts, MatView<const float> x) {
  Spread token, context, whole, fraction, cosine;
  for (size_t t = 0; t < x.rows; ++t) {
    double ee = 0, cc = 0, xx = 0, ec = 0;
    for (size_t i = 0; i < x.cols; ++i) {
      const auto e = static_cast<double>(parts.token(t, i));
      const auto c = static_cast<double>(parts.context(t, i));
      const auto v = static_cast<double>(x(t, i));
      ee += e * e, cc += c * c, xx += v * v, ec += e * c;
    }
    token.add(std::sqrt(ee));
    context.add(std::sqrt(cc));
    whole.add(std::sqrt(xx));
    fraction.add(xx > 0 ? std::sqrt(cc / xx) : 0);
    cosine.add(ee > 0 && cc > 0 ? ec / std::sqrt(ee * cc) : 0);
  }
  const double n = static_cast<double>(x.rows);
  return {token.mean(n),  context.mean(n), whole.mean(n), fraction.mean(n),
          fraction.sd(n), cosine.mean(n),  cosine.sd(n)};
}

}  // namespace halflin
