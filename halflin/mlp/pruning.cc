#include "halflin/mlp/pruning.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/ops/products.h"

namespace halflin {

namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Index index(size_t n) { return static_cast<Eigen::Index>(n); }

// Of h neurons, so many leave together: fewer choose better, more save passes over a large matrix.
size_t group_of(size_t h) { return std::clamp<size_t>(h / 96, 1, 16); }

// The neurons left, first in all of these: place i holds neuron neuron[i].
struct Remaining {
  ThreadPool& pool;
  Matrix<double> inverse;  // [h, h] of the products of those left
  Matrix<double> weights;  // [h, d] their refitted output weights
  std::vector<int32_t> neuron;
  size_t count = 0;

  // Moves the neurons at `places` behind those that stay.
  void move_last(std::vector<size_t> places) {
    std::sort(places.begin(), places.end(), std::greater<>());
    size_t last = count;
    for (const size_t place : places) {
      if (--last == place) continue;
      std::swap_ranges(inverse.row(place), inverse.row(place) + inverse.cols(), inverse.row(last));
      for (size_t r = 0; r < inverse.rows(); ++r) std::swap(inverse(r, place), inverse(r, last));
      std::swap_ranges(weights.row(place), weights.row(place) + weights.cols(), weights.row(last));
      std::swap(neuron[place], neuron[last]);
    }
  }

  // Removes the `group` neurons that cost least.
  void remove(size_t group) {
    std::vector<double> cost(count);
    for (size_t i = 0; i < count; ++i) {
      double norm = 0;
      for (const double w : weights.view().row_span(i)) norm += w * w;
      cost[i] = norm / inverse(i, i);
    }
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](size_t i, size_t j) {
      return cost[i] != cost[j] ? cost[i] < cost[j] : neuron[i] < neuron[j];
    });
    order.resize(group);
    move_last(std::move(order));

    // Block elimination: what stays takes over what leaves.
    const size_t stay = count - group;
    const MatView<const double> across = inverse.view().row_range(stay, group).col_range(0, stay);
    const Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> own(
        inverse.row(stay) + stay, index(group), index(group),
        Eigen::OuterStride<>(index(inverse.cols())));
    const Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> right(
        across.data, index(group), index(stay), Eigen::OuterStride<>(index(across.stride)));
    Matrix<double> minus(group, stay);
    Eigen::Map<RowMajor>(minus.data(), index(group), index(stay)) =
        -Eigen::LLT<RowMajor>(own).solve(right);
    accumulate_products(pool, minus.view(), weights.view().row_range(stay, group),
                        weights.view().row_range(0, stay));
    accumulate_products(pool, minus.view(), across,
                        inverse.view().row_range(0, stay).col_range(0, stay));
    count = stay;
  }
};

PrunedMlp pruned(const Remaining& left, const Moments& neurons, MatView<const float> down,
                 std::span<const float> output_bias) {
  std::vector<std::pair<int32_t, size_t>> order;
  for (size_t i = 0; i < left.count; ++i) {
    order.emplace_back(left.neuron[i], i);
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
      const double weight = left.weights(place, k);
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
  Remaining left{pool, std::move(inverse), Matrix<double>(h, down.cols), std::vector<int32_t>(h),
                 h};
  for (size_t j = 0; j < h; ++j) std::copy_n(down.row(j), down.cols, left.weights.row(j));
  std::iota(left.neuron.begin(), left.neuron.end(), 0);

  std::vector<PrunedMlp> out(shares.size());
  for (const auto& [size, share] : sizes) {
    while (left.count > size) left.remove(std::min(group_of(h), left.count - size));
    out[share] = pruned(left, neurons, down, output_bias);
  }
  return out;
}

}  // namespace halflin
