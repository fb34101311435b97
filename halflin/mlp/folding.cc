#include "halflin/mlp/folding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/ops/products.h"

namespace halflin {

NeuronFit fit_neurons(ThreadPool& pool, const Moments& moments, double lambda,
                      MatView<const float> down, size_t first) {
  const size_t dx = moments.mean_x.size();
  const size_t h = down.rows;
  if (first + h > moments.mean_y.size()) {
    fail("folding: expected {} neurons from column {}, found {} columns", h, first,
         moments.mean_y.size());
  }
  if (moments.n == 0) fail("folding: no rows to fit");
  Matrix<double> solution(dx, h);
  for (size_t i = 0; i < dx; ++i) std::copy_n(moments.xy.row(i) + first, h, solution.row(i));
  solve_in_place(pool, factor_spd(moments.xx.view(), lambda), solution.view());

  NeuronFit fit;
  fit.rows = moments.n;
  fit.weight = Matrix<double>(h, dx);
  fit.bias.resize(h);
  fit.energy.resize(h);
  fit.importance.resize(h);
  for (size_t j = 0; j < h; ++j) {
    // yy - 2 v.xy + v.xx v, with xx v = xy - lambda v from the normal equations.
    double bias = moments.mean_y[first + j];
    double energy = moments.yy[first + j];
    for (size_t i = 0; i < dx; ++i) {
      const double v = solution(i, j);
      fit.weight(j, i) = v;
      bias -= moments.mean_x[i] * v;
      energy -= v * (moments.xy(i, first + j) + lambda * v);
    }
    double norm = 0;
    for (const float w : down.row_span(j)) norm += static_cast<double>(w) * static_cast<double>(w);
    fit.bias[j] = bias;
    fit.energy[j] = energy > 0 ? energy : 0;
    fit.importance[j] = fit.energy[j] * norm;
    if (!std::isfinite(bias) || !std::isfinite(energy) || !std::isfinite(norm)) {
      fail("folding: neuron {} holds NaN or Inf", j);
    }
  }
  fit.ranking.resize(h);
  std::iota(fit.ranking.begin(), fit.ranking.end(), 0);
  std::stable_sort(fit.ranking.begin(), fit.ranking.end(), [&](int32_t a, int32_t b) {
    return fit.importance[static_cast<size_t>(a)] > fit.importance[static_cast<size_t>(b)];
  });
  return fit;
}

FoldedMlp fold_neurons(ThreadPool& pool, const NeuronFit& fit, MatView<const float> down,
                       std::span<const float> output_bias, double fraction) {
  const size_t h = fit.weight.rows();
  const size_t dx = fit.weight.cols();
  const size_t d = down.cols;
  if (!(fraction >= 0 && fraction <= 1)) {
    fail("folding: expected a fraction of neurons in [0, 1], found {}", fraction);
  }
  if (down.rows != h || (!output_bias.empty() && output_bias.size() != d)) {
    fail("folding: expected a down projection of {} rows, found {} x {} and {} biases", h,
         down.rows, d, output_bias.size());
  }
  const auto keep = static_cast<size_t>(std::lround(fraction * static_cast<double>(h)));
  FoldedMlp out;
  out.kept.assign(fit.ranking.begin(), fit.ranking.begin() + static_cast<ptrdiff_t>(keep));
  std::sort(out.kept.begin(), out.kept.end());

  std::vector<double> bias(output_bias.begin(), output_bias.end());
  bias.resize(d, 0.0);
  Matrix<double> weight(dx, d);
  // Blocks of folded neurons, gathered in float64, in index order.
  constexpr size_t kBlock = 512;
  const size_t folded = h - keep;
  Matrix<double> v(std::min(kBlock, folded), dx);
  Matrix<double> w(std::min(kBlock, folded), d);
  size_t filled = 0;
  size_t next_kept = 0;
  for (size_t j = 0; j < h; ++j) {
    if (next_kept < keep && static_cast<size_t>(out.kept[next_kept]) == j) {
      ++next_kept;
      continue;
    }
    std::copy_n(fit.weight.row(j), dx, v.row(filled));
    std::copy_n(down.row(j), d, w.row(filled));
    for (size_t k = 0; k < d; ++k) bias[k] += fit.bias[j] * w(filled, k);
    if (++filled == v.rows()) {
      accumulate_products(pool, v.view(), w.view(), weight.view());
      filled = 0;
    }
  }
  if (filled > 0) {
    accumulate_products(pool, v.view().row_range(0, filled), w.view().row_range(0, filled),
                        weight.view());
  }
  out.folded = make_affine(weight.view(), bias);
  return out;
}

}  // namespace halflin
