// What the decoder's tests share: the batch forward pass as a reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "halflin/base/random.h"
#include "halflin/model/forward.h"

namespace halflin {

// Logits of every position, [T, vocab], and the routes, [T, layers].
struct Reference {
  Matrix<float> logits;
  Matrix<uint8_t> routes;
};
inline Reference forward(ThreadPool& pool, const Model& model, std::span<const int32_t> ids,
                         const std::vector<MlpPath>& paths) {
  Batch batch;
  batch.add(ids);
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), model.config.d_model);
  Reference reference{Matrix<float>(batch.rows(), model.config.vocab),
                      Matrix<uint8_t>(batch.rows(), model.config.layers)};
  embed(model, batch, residual.view());
  for (size_t l = 0; l < model.config.layers; ++l) {
    const Operand x = attention_step(pool, model, l, batch.offsets, residual.view(), workspace);
    std::vector<uint8_t> route(ids.size());
    apply_path(pool, model.layers[l].mlp, paths.empty() ? MlpPath() : paths[l], x, true,
               residual.view(), workspace.mlp, route);
    for (size_t t = 0; t < ids.size(); ++t) reference.routes(t, l) = route[t];
  }
  final_logits(pool, model, residual.view(), workspace, reference.logits.view());
  return reference;
}

// Largest difference as a share of the expected values' range.
inline double difference(std::span<const float> expected, std::span<const float> found) {
  EXPECT_EQ(expected.size(), found.size());
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    most = std::max<double>(most, std::abs(expected[i] - found[i]));
  }
  return most / (*high - *low);
}

inline Linear random_linear(Random& random, size_t in, size_t out, Precision precision,
                            bool with_bias = true) {
  Matrix<float> weight(out, in);
  for (float& v : weight.span()) v = 0.3f * static_cast<float>(random.normal());
  std::vector<float> bias(with_bias ? out : 0);
  for (float& v : bias) v = 0.1f * static_cast<float>(random.normal());
  return Linear(weight.view(), false, bias, precision);
}

}  // namespace halflin
