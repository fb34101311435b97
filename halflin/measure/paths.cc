#include "halflin/measure/paths.h"

#include <algorithm>
#include <numeric>

namespace halflin {

CheapPath affine_path(const Affine& affine, Precision precision) {
  CheapPath path;
  path.affine = Linear(affine.weight.view(), /*in_by_out=*/true, affine.bias, precision);
  return path;
}

CheapPath low_rank_path(const LowRankAffine& affine, Precision precision) {
  CheapPath path;
  if (affine.down.cols() == 0) {
    path.constant = affine.bias;
    return path;
  }
  path.low_rank_in = Linear(affine.down.view(), /*in_by_out=*/true, {}, precision);
  path.low_rank_out = Linear(affine.up.view(), /*in_by_out=*/true, affine.bias, precision);
  return path;
}

CheapPath folded_path(const Model& model, const MlpWeights& weights, const FoldedMlp& folded) {
  CheapPath path;
  if (!folded.kept.empty()) {
    path.narrow =
        std::make_shared<Mlp>(select_neurons(model, weights, folded.kept, /*with_bias=*/false));
  }
  if (folded.kept.size() == weights.up.rows()) {
    path.constant = folded.folded.bias;  // nothing was folded: the output bias alone
  } else {
    path.affine = Linear(folded.folded.weight.view(), /*in_by_out=*/true, folded.folded.bias,
                         model.precision);
  }
  return path;
}

CheapPath mean_path(std::span<const double> mean) {
  CheapPath path;
  path.constant.assign(mean.begin(), mean.end());
  return path;
}

CheapPath narrow_path(const Model& model, const MlpWeights& weights, const Moments& moments,
                      size_t first, size_t count) {
  const size_t h = weights.up.rows();
  const size_t d = weights.down.rows();
  std::vector<double> importance(h);
  for (size_t j = 0; j < h; ++j) {
    double column = 0;
    for (size_t i = 0; i < d; ++i) {
      column += static_cast<double>(weights.down(i, j)) * static_cast<double>(weights.down(i, j));
    }
    importance[j] = moments.yy[first + j] * column;
  }
  std::vector<int32_t> order(h);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
  });
  count = std::min(count, h);
  std::vector<double> constant(d, 0.0);
  for (size_t i = count; i < h; ++i) {
    const auto j = static_cast<size_t>(order[i]);
    for (size_t r = 0; r < d; ++r) {
      constant[r] += moments.mean_y[first + j] * static_cast<double>(weights.down(r, j));
    }
  }
  CheapPath path;
  std::vector<int32_t> kept(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(kept.begin(), kept.end());
  path.narrow = std::make_shared<Mlp>(select_neurons(model, weights, kept, /*with_bias=*/true));
  path.constant.assign(constant.begin(), constant.end());
  return path;
}

AllocationModel allocation_model(const std::string& name, const Checkpoint& checkpoint) {
  const Config& config = checkpoint.architecture.config;
  return {.name = name,
          .sha256 = sha256_files(checkpoint.file),
          .family = config.family,
          .layers = config.layers,
          .d_model = config.d_model,
          .d_mlp = config.d_mlp,
          .gated_mlp = config.gated_mlp};
}

CheapPath pack_path(const Model& model, const MlpWeights& weights, const PlainPath& path) {
  const auto pack = [&](const PlainLinear& linear) {
    return linear.empty()
               ? Linear()
               : Linear(linear.weight.view(), /*in_by_out=*/false, linear.bias, model.precision);
  };
  CheapPath packed;
  packed.affine = pack(path.affine);
  packed.low_rank_in = pack(path.low_rank_in);
  packed.low_rank_out = pack(path.low_rank_out);
  packed.constant = path.constant;
  const PlainNeurons& neurons = path.neurons;
  if (neurons.kept.empty()) return packed;
  Mlp narrow = select_neurons(model, weights, neurons.kept, /*with_bias=*/false);
  if (!neurons.gate.empty()) narrow.gate = pack(neurons.gate);
  if (!neurons.up.empty()) narrow.up = pack(neurons.up);
  if (!neurons.down.empty()) narrow.down = pack(neurons.down);
  packed.narrow = std::make_shared<Mlp>(std::move(narrow));
  return packed;
}

std::vector<MlpPath> pack_allocation(ThreadPool& pool, const Model& model,
                                     const Allocation& allocation) {
  std::vector<MlpPath> paths(allocation.layers.size());
  pool.parallel_for(paths.size(), [&](size_t l, int) {
    if (allocation.layers[l].empty()) return;
    const MlpWeights weights = read_mlp_weights(model, l);
    for (const PlainOption& option : allocation.layers[l]) {
      paths[l].options.push_back(
          {std::make_shared<CheapPath>(pack_path(model, weights, option.path)), option.gate});
    }
  });
  return paths;
}

Allocation load_allocation_for(const std::string& path, const std::string& name,
                               const Checkpoint& checkpoint) {
  Allocation allocation = load_allocation(path);
  check_allocation_model(allocation, allocation_model(name, checkpoint), path);
  return allocation;
}

}  // namespace halflin
