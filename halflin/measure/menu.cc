#include "halflin/measure/menu.h"

#include <algorithm>

#include "halflin/mlp/folding.h"
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
  NeuronFit neurons;           // of the neurons on x
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
  Fit fit{pool, weights, moments, options.ridge, d, h, {}, {}, {}, {}, {}, {}};
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
  if (options.folded.empty()) return fit;

  Moments on_x(d, h);
  on_x.n = moments.n;
  on_x.mean_x = fit.inputs.mean_x;
  on_x.mean_y.assign(moments.mean_x.begin() + static_cast<ptrdiff_t>(d), moments.mean_x.end());
  copy(fit.xx(), on_x.xx);
  copy(fit.xa(), on_x.xy);
  for (size_t j = 0; j < h; ++j) on_x.yy[j] = moments.xx(d + j, d + j);
  fit.neurons = fit_neurons(pool, on_x, options.ridge, fit.down.view());
  return fit;
}

// The affine map of x that, beside the kept neurons with the model's own output weights, comes
// closest to the targets. For the MLP's own outputs that is neuron folding (mlp/folding.h).
PlainPath folded_path(Fit& fit, double share) {
  const size_t d = fit.d;
  const auto count = static_cast<size_t>(std::lround(share * static_cast<double>(fit.h)));
  PlainPath path{.kind = count == 0 ? "linear" : "folded"};
  std::vector<int32_t>& kept = path.neurons.kept;
  if (count > 0) {
    kept.assign(fit.neurons.ranking.begin(),
                fit.neurons.ranking.begin() + static_cast<ptrdiff_t>(count));
    std::sort(kept.begin(), kept.end());
  }
  // What x has to give: the targets less what the kept neurons give.
  Matrix<double> weight(d, d);
  copy(fit.inputs.xy.view(), weight);
  std::vector<double> bias = fit.target;
  Matrix<double> x_products(count, d);
  Matrix<double> outputs(count, d);
  for (size_t i = 0; i < count; ++i) {
    const auto j = static_cast<size_t>(kept[i]);
    std::copy_n(fit.moments.xx.row(fit.d + j), d, x_products.row(i));
    for (size_t k = 0; k < d; ++k) {
      outputs(i, k) = -static_cast<double>(fit.down(j, k));
      bias[k] += fit.moments.mean_x[d + j] * outputs(i, k);
    }
  }
  accumulate_products(fit.pool, x_products.view(), outputs.view(), weight.view());
  solve_in_place(fit.pool, fit.factor, weight.view());
  for (size_t i = 0; i < d; ++i) {
    for (size_t k = 0; k < d; ++k) bias[k] -= fit.inputs.mean_x[i] * weight(i, k);
  }
  const Affine affine = make_affine(weight.view(), bias);
  path.affine = transposed(affine.weight.view(), affine.bias);
  return path;
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
    if (!fit.moments.mean_y.empty()) {  // other targets: the same neurons, fitted to these
      const size_t count = one.kept.size();
      Matrix<double> gram(count, count);
      Matrix<double> weight(count, d);
      std::vector<double> bias = fit.target;
      for (size_t r = 0; r < count; ++r) {
        const auto i = static_cast<size_t>(one.kept[r]);
        for (size_t c = 0; c < count; ++c) {
          gram(r, c) = neurons.xx(i, static_cast<size_t>(one.kept[c]));
        }
        for (size_t k = 0; k < d; ++k) {
          weight(r, k) = fit.products(d + i, k) + fit.ridge * static_cast<double>(fit.down(i, k));
        }
      }
      solve_in_place(fit.pool, factor_spd(gram.view(), fit.ridge), weight.view());
      for (size_t r = 0; r < count; ++r) {
        const double mean = neurons.mean_x[static_cast<size_t>(one.kept[r])];
        for (size_t k = 0; k < d; ++k) bias[k] -= mean * weight(r, k);
      }
      Affine refitted = make_affine(weight.view(), bias);
      one.down = std::move(refitted.weight);
      one.bias = std::move(refitted.bias);
    }
    PlainPath path{.kind = "pruned"};
    path.neurons.kept = std::move(one.kept);
    path.neurons.down = transposed(one.down.view(), {});
    path.constant = std::move(one.bias);
    paths.push_back(std::move(path));
  }
  return paths;
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
  if (options.linear) paths.push_back(folded_path(fit, 0));
  for (const double share : options.folded) paths.push_back(folded_path(fit, share));
  for (const size_t rank : options.ranks) paths.push_back(low_rank_path(fit, rank));
  if (!options.pruned.empty()) {
    for (PlainPath& path : pruned_paths(fit, options.pruned)) paths.push_back(std::move(path));
  }
  const bool gated = !weights.gate.empty();
  std::stable_sort(paths.begin(), paths.end(), [&](const PlainPath& a, const PlainPath& b) {
    return plain_flops(a, fit.d, gated) < plain_flops(b, fit.d, gated);
  });
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
