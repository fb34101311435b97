#include "halflin/measure/menu.h"

#include <algorithm>
#include <numeric>

#include "halflin/mlp/pruning.h"
#include "halflin/mlp/surrogate.h"
#include "halflin/ops/products.h"

namespace halflin {

namespace {

// One layer's fit: what all of its paths share.
struct Fit {
  ThreadPool& pool;
  const MlpWeights& weights;
  const Moments& moments;
  double ridge;
  size_t d, h;
  Matrix<float> down;          // [h, d]
  Matrix<double> products;     // [d + h, d] of (x | neurons) with the targets
  std::vector<double> target;  // [d] their mean
  Moments inputs;              // x and the targets
  SpdFactor factor;            // of x's products

  MatView<const double> xx() const { return moments.xx.view().row_range(0, d).col_range(0, d); }
  MatView<const double> xa() const { return moments.xx.view().row_range(0, d).col_range(d, h); }
  MatView<const double> aa() const { return moments.xx.view().row_range(d, h).col_range(d, h); }
};

void copy(MatView<const double> from, Matrix<double>& to) {
  for (size_t r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to.row(r));
}

Matrix<double> widened(MatView<const float> m) {
  Matrix<double> out(m.rows, m.cols);
  for (size_t r = 0; r < m.rows; ++r) std::copy_n(m.row(r), m.cols, out.row(r));
  return out;
}

PlainLinear transposed(MatView<const float> in_by_out, std::span<const float> bias) {
  PlainLinear linear{Matrix<float>(in_by_out.cols, in_by_out.rows), {bias.begin(), bias.end()}};
  for (size_t r = 0; r < in_by_out.rows; ++r) {
    for (size_t c = 0; c < in_by_out.cols; ++c) linear.weight(c, r) = in_by_out(r, c);
  }
  return linear;
}

Fit prepare(ThreadPool& pool, const MlpWeights& weights, const Moments& moments,
            const MenuOptions& options) {
  const size_t d = weights.down.rows();
  const size_t h = weights.down.cols();
  Fit fit{pool, weights, moments, options.ridge, d, h, {}, {}, {}, {}, {}};
  fit.down = transposed(weights.down.view(), {}).weight;
  if (moments.mean_y.empty()) {
    // f = neurons down + bias: its products follow from the neurons'.
    fit.products = Matrix<double>(d + h, d);
    accumulate_products(pool, moments.xx.view().row_range(d, h), widened(fit.down.view()).view(),
                        fit.products.view());
    fit.target.assign(weights.down_bias.begin(), weights.down_bias.end());
    fit.target.resize(d, 0.0);
    for (size_t j = 0; j < h; ++j) {
      for (size_t k = 0; k < d; ++k) {
        fit.target[k] += moments.mean_x[d + j] * static_cast<double>(fit.down(j, k));
      }
    }
  } else {
    fit.products = Matrix<double>(d + h, d);
    copy(moments.xy.view(), fit.products);
    fit.target = moments.mean_y;
  }

  fit.inputs = Moments(d, d);
  fit.inputs.n = moments.n;
  fit.inputs.mean_x.assign(moments.mean_x.begin(),
                           moments.mean_x.begin() + static_cast<ptrdiff_t>(d));
  fit.inputs.mean_y = fit.target;
  copy(fit.xx(), fit.inputs.xx);
  copy(fit.products.view().row_range(0, d), fit.inputs.xy);
  fit.factor = factor_spd(fit.inputs.xx.view(), options.ridge);
  return fit;
}

// The affine map of x that, beside `kept` neurons with output weights `outputs` [kept, d], comes
// closest to the targets: what x has to give is the targets less what the neurons give.
PlainPath affine_beside(Fit& fit, std::vector<int32_t> kept, MatView<const float> outputs) {
  const size_t d = fit.d;
  Matrix<double> weight(d, d);
  copy(fit.inputs.xy.view(), weight);
  std::vector<double> bias = fit.target;
  Matrix<double> x_products(kept.size(), d);
  Matrix<double> given(kept.size(), d);
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto j = static_cast<size_t>(kept[i]);
    std::copy_n(fit.moments.xx.row(fit.d + j), d, x_products.row(i));
    for (size_t k = 0; k < d; ++k) {
      given(i, k) = -static_cast<double>(outputs(i, k));
      bias[k] += fit.moments.mean_x[d + j] * given(i, k);
    }
  }
  accumulate_products(fit.pool, x_products.view(), given.view(), weight.view());
  solve_in_place(fit.pool, fit.factor, weight.view());
  for (size_t i = 0; i < d; ++i) {
    for (size_t k = 0; k < d; ++k) bias[k] -= fit.inputs.mean_x[i] * weight(i, k);
  }
  const Affine affine = make_affine(weight.view(), bias);
  PlainPath path{.kind = kept.empty() ? "linear" : "folded"};
  path.affine = transposed(affine.weight.view(), affine.bias);
  if (kept.empty()) return path;
  path.neurons.kept = std::move(kept);
  path.neurons.down = transposed(outputs, {});
  return path;
}

// Output weights of `kept` neurons for targets that are not the MLP's own outputs: least squares,
// pulled to the weights they have. `products` are of all neurons [h, d] with the targets.
Matrix<float> refit(Fit& fit, const Matrix<double>& gram, MatView<const double> products,
                    std::span<const int32_t> kept) {
  const size_t count = kept.size();
  Matrix<double> own(count, count);
  Matrix<double> weight(count, fit.d);
  for (size_t r = 0; r < count; ++r) {
    const auto i = static_cast<size_t>(kept[r]);
    for (size_t c = 0; c < count; ++c) own(r, c) = gram(i, static_cast<size_t>(kept[c]));
    for (size_t k = 0; k < fit.d; ++k) {
      weight(r, k) = products(i, k) + fit.ridge * static_cast<double>(fit.down(i, k));
    }
  }
  solve_in_place(fit.pool, factor_spd(own.view(), fit.ridge), weight.view());
  return make_affine(weight.view(), std::vector<double>(fit.d)).weight;
}

// Neurons pruned from (x | neurons), where x always stays: what x explains of them is left out.
std::vector<PlainPath> folded_paths(Fit& fit, std::span<const double> shares) {
  Matrix<double> on_x(fit.d, fit.h);  // minus the neurons' regression on x
  copy(fit.xa(), on_x);
  solve_in_place(fit.pool, fit.factor, on_x.view());
  for (double& v : on_x.span()) v = -v;
  Moments rest(fit.h, 0);
  rest.n = fit.moments.n;
  copy(fit.aa(), rest.xx);
  accumulate_products(fit.pool, fit.xa(), on_x.view(), rest.xx.view());
  std::vector<PlainPath> paths;
  const bool own = fit.moments.mean_y.empty();
  Matrix<double> products(own ? 0 : fit.h, fit.d);
  if (!own) {
    copy(fit.products.view().row_range(fit.d, fit.h), products);
    accumulate_products(fit.pool, on_x.view(), fit.inputs.xy.view(), products.view());
  }
  for (PrunedMlp& one : prune_neurons(fit.pool, rest, fit.ridge, fit.down.view(), {}, shares)) {
    if (!own) one.down = refit(fit, rest.xx, products.view(), one.kept);
    paths.push_back(affine_beside(fit, std::move(one.kept), one.down.view()));
  }
  return paths;
}

PlainPath low_rank_path(Fit& fit, size_t rank) {
  const LowRankAffine fitted = low_rank(fit.pool, fit.inputs, fit.ridge, rank);
  PlainPath path{.kind = "low-rank"};
  path.low_rank_in = transposed(fitted.down.view(), {});
  path.low_rank_out = transposed(fitted.up.view(), fitted.bias);
  return path;
}

std::vector<PlainPath> pruned_paths(Fit& fit, std::span<const double> shares) {
  const size_t d = fit.d;
  Moments neurons(fit.h, 0);
  neurons.n = fit.moments.n;
  neurons.mean_x.assign(fit.moments.mean_x.begin() + static_cast<ptrdiff_t>(d),
                        fit.moments.mean_x.end());
  copy(fit.aa(), neurons.xx);
  std::vector<PrunedMlp> pruned =
      prune_neurons(fit.pool, neurons, fit.ridge, fit.down.view(), fit.weights.down_bias, shares);
  std::vector<PlainPath> paths;
  for (PrunedMlp& one : pruned) {
    if (!fit.moments.mean_y.empty()) {
      one.down = refit(fit, neurons.xx, fit.products.view().row_range(d, fit.h), one.kept);
      for (size_t k = 0; k < d; ++k) {
        double bias = fit.target[k];
        for (size_t r = 0; r < one.kept.size(); ++r) {
          bias -= neurons.mean_x[static_cast<size_t>(one.kept[r])] *
                  static_cast<double>(one.down(r, k));
        }
        one.bias[k] = static_cast<float>(bias);
      }
    }
    PlainPath path{.kind = "pruned"};
    path.neurons.kept = std::move(one.kept);
    path.neurons.down = transposed(one.down.view(), {});
    path.constant = std::move(one.bias);
    paths.push_back(std::move(path));
  }
  return paths;
}

void sort_by_flops(std::vector<PlainPath>& paths, size_t d_model, bool gated_mlp) {
  std::stable_sort(paths.begin(), paths.end(), [&](const PlainPath& a, const PlainPath& b) {
    return plain_flops(a, d_model, gated_mlp) < plain_flops(b, d_model, gated_mlp);
  });
}

}  // namespace

double plain_flops(const PlainPath& path, size_t d_model, bool gated_mlp) {
  const auto d = static_cast<double>(d_model);
  const double affine = path.affine.empty() ? 0 : d;
  const auto rank = static_cast<double>(path.low_rank_in.weight.rows());
  const auto kept = static_cast<double>(path.neurons.kept.size());
  return 2 * d * (affine + 2 * rank + (gated_mlp ? 3 : 2) * kept);
}

std::vector<PlainPath> fit_menu(ThreadPool& pool, const MlpWeights& weights, const Moments& moments,
                                const MenuOptions& options) {
  Fit fit = prepare(pool, weights, moments, options);
  std::vector<PlainPath> paths;
  if (options.linear) paths.push_back(affine_beside(fit, {}, fit.down.view().row_range(0, 0)));
  if (!options.folded.empty()) {
    for (PlainPath& path : folded_paths(fit, options.folded)) paths.push_back(std::move(path));
  }
  for (const size_t rank : options.ranks) paths.push_back(low_rank_path(fit, rank));
  if (!options.pruned.empty()) {
    for (PlainPath& path : pruned_paths(fit, options.pruned)) paths.push_back(std::move(path));
  }
  sort_by_flops(paths, fit.d, !weights.gate.empty());
  return paths;
}

std::vector<PlainPath> menu_shapes(const MenuOptions& options, size_t d_model, size_t d_mlp,
                                   bool gated_mlp) {
  const auto zeros = [](size_t out, size_t in) { return PlainLinear{Matrix<float>(out, in), {}}; };
  const auto neurons = [&](const char* kind, double share) {
    PlainPath path{.kind = kind};
    path.neurons.kept.resize(kept_count(share, d_mlp));
    std::iota(path.neurons.kept.begin(), path.neurons.kept.end(), 0);
    path.neurons.down = zeros(d_model, path.neurons.kept.size());
    return path;
  };
  std::vector<PlainPath> paths;
  if (options.linear) paths.push_back({.kind = "linear", .affine = zeros(d_model, d_model)});
  for (const double share : options.folded) {
    paths.push_back(neurons("folded", share));
    paths.back().affine = zeros(d_model, d_model);
  }
  for (const size_t rank : options.ranks) {
    paths.push_back({.kind = "low-rank",
                     .low_rank_in = zeros(rank, d_model),
                     .low_rank_out = zeros(d_model, rank)});
  }
  for (const double share : options.pruned) paths.push_back(neurons("pruned", share));
  sort_by_flops(paths, d_model, gated_mlp);
  return paths;
}

PlainPath mean_pruned_path(const MlpWeights& weights, std::span<const double> mean,
                           std::vector<int32_t> kept) {
  PlainPath path{.kind = "narrow"};
  std::vector<uint8_t> is_kept(weights.down.cols(), 0);
  for (const int32_t j : kept) is_kept[static_cast<size_t>(j)] = 1;
  for (size_t r = 0; r < weights.down.rows(); ++r) {
    double sum = weights.down_bias.empty() ? 0.0 : static_cast<double>(weights.down_bias[r]);
    for (size_t j = 0; j < is_kept.size(); ++j) {
      if (is_kept[j] == 0) sum += mean[j] * static_cast<double>(weights.down(r, j));
    }
    path.constant.push_back(static_cast<float>(sum));
  }
  path.neurons.kept = std::move(kept);
  return path;
}

}  // namespace halflin
