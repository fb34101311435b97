#include "halflin/mlp/pruning.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/base/error.h"

namespace halflin {

namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Index index(size_t n) { return static_cast<Eigen::Index>(n); }

// Of h neurons, so many leave together: fewer choose better, more save passes over a large matrix.
Eigen::Index group_of(size_t h) { return std::clamp<Eigen::Index>(index(h) / 96, 1, 16); }

// The neurons left, first in all of these: place i holds neuron neuron[i].
struct Remaining {
  RowMajor inverse;  // [h, h] of the products of those left
  RowMajor weights;  // [h, d] their refitted output weights
  std::vector<int32_t> neuron;
  Eigen::Index count = 0;

  // Moves the neurons at `places` behind those that stay.
  void move_last(std::vector<Eigen::Index> places) {
    std::sort(places.begin(), places.end(), std::greater<>());
    Eigen::Index last = count;
    for (const Eigen::Index place : places) {
      if (--last == place) continue;
      inverse.row(place).swap(inverse.row(last));
      inverse.col(place).swap(inverse.col(last));
      weights.row(place).swap(weights.row(last));
      std::swap(neuron[static_cast<size_t>(place)], neuron[static_cast<size_t>(last)]);
    }
  }

  // Removes the `group` neurons that cost least.
  void remove(Eigen::Index group) {
    std::vector<double> cost(static_cast<size_t>(count));
    for (Eigen::Index i = 0; i < count; ++i) {
      cost[static_cast<size_t>(i)] = weights.row(i).squaredNorm() / inverse(i, i);
    }
    std::vector<Eigen::Index> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](Eigen::Index a, Eigen::Index b) {
      const auto i = static_cast<size_t>(a);
      const auto j = static_cast<size_t>(b);
      return cost[i] != cost[j] ? cost[i] < cost[j] : neuron[i] < neuron[j];
    });
    order.resize(static_cast<size_t>(group));
    move_last(std::move(order));

    // Block elimination: what stays takes over what leaves.
    const Eigen::Index stay = count - group;
    const RowMajor across = inverse.block(0, stay, stay, group);
    const Eigen::LLT<RowMajor> own(inverse.block(stay, stay, group, group));
    inverse.topLeftCorner(stay, stay).noalias() -= across * own.solve(across.transpose());
    weights.topRows(stay).noalias() -= across * own.solve(weights.middleRows(stay, group));
    count = stay;
  }
};

PrunedMlp pruned(const Remaining& left, const Moments& neurons, MatView<const float> down,
                 std::span<const float> output_bias) {
  std::vector<std::pair<int32_t, Eigen::Index>> order;
  for (Eigen::Index i = 0; i < left.count; ++i) {
    order.emplace_back(left.neuron[static_cast<size_t>(i)], i);
  }
  std::sort(order.begin(), order.end());
  PrunedMlp out;
  out.down = Matrix<float>(order.size(), down.cols);
  std::vector<double> bias(output_bias.begin(), output_bias.end());
  bias.resize(down.cols, 0.0);
  for (size_t j = 0; j < down.rows; ++j) {
    for (size_t k = 0; k < down.cols; ++k) {
      bias[k] += neurons.mean_x[j] * static_cast<double>(down(j, k));
    }
  }
  for (size_t r = 0; r < order.size(); ++r) {
    const auto [neuron, place] = order[r];
    out.kept.push_back(neuron);
    const double mean = neurons.mean_x[static_cast<size_t>(neuron)];
    for (size_t k = 0; k < down.cols; ++k) {
      const double weight = left.weights(place, index(k));
      out.down(r, k) = static_cast<float>(weight);
      bias[k] -= mean * weight;
    }
  }
  for (const double b : bias) {
    if (!std::isfinite(b)) fail("pruning: the refitted weights hold NaN or Inf");
    out.bias.push_back(static_cast<float>(b));
  }
  return out;
}

}  // namespace

size_t kept_count(double share, size_t h) {
  return std::max<size_t>(static_cast<size_t>(std::lround(share * static_cast<double>(h))), 1);
}

std::vector<PrunedMlp> prune_neurons(ThreadPool& pool, const Moments& neurons, double lambda,
                                     MatView<const float> down, std::span<const float> output_bias,
                                     std::span<const double> shares) {
  const size_t h = neurons.mean_x.size();
  if (down.rows != h || (!output_bias.empty() && output_bias.size() != down.cols)) {
    fail("pruning: expected a down projection of {} rows, found {} x {} and {} biases", h,
         down.rows, down.cols, output_bias.size());
  }
  if (neurons.n == 0) fail("pruning: no rows to fit");
  std::vector<std::pair<size_t, size_t>> sizes;  // neurons kept, index into shares
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!(shares[i] > 0 && shares[i] <= 1)) {
      fail("pruning: expected a share of neurons in (0, 1], found {}", shares[i]);
    }
    sizes.emplace_back(kept_count(shares[i], h), i);
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());

  // The penalty must leave the inverse finite where neurons depend on each other, or never fire.
  double scale = 0;
  for (size_t j = 0; j < h; ++j) scale = std::max(scale, neurons.xx(j, j));
  const double penalty = std::max(lambda, 1e-9 * scale);
  Matrix<double> inverse(h, h);
  for (size_t j = 0; j < h; ++j) inverse(j, j) = 1;
  solve_in_place(pool, factor_spd(neurons.xx.view(), penalty), inverse.view());
  Remaining left;
  left.inverse = Eigen::Map<const RowMajor>(inverse.data(), index(h), index(h));
  left.weights = RowMajor(index(h), index(down.cols));
  for (size_t j = 0; j < h; ++j) {
    for (size_t k = 0; k < down.cols; ++k) {
      left.weights(index(j), index(k)) = static_cast<double>(down(j, k));
    }
  }
  left.neuron.resize(h);
  std::iota(left.neuron.begin(), left.neuron.end(), 0);
  left.count = index(h);

  std::vector<PrunedMlp> out(shares.size());
  for (const auto& [size, share] : sizes) {
    while (left.count > index(size)) left.remove(std::min(group_of(h), left.count - index(size)));
    out[share] = pruned(left, neurons, down, output_bias);
  }
  return out;
}

}  // namespace halflin
