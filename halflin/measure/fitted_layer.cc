#include "halflin/measure/fitted_layer.h"

#include <algorithm>
#include <cmath>

namespace halflin {

namespace {

// The lowest score that may take `option`, such that the train split gains most; `gain` [T] is what
// tokens gain without the option, and then with it. Returns how many tokens pass.
size_t set_threshold(const FittedOption& option, double price, std::vector<double>& gain,
                     float& threshold) {
  double sum = 0, best = 0;
  size_t count = 0;
  const auto own = [&](uint32_t t) {
    return price * option.saved - std::exp(-static_cast<double>(option.score[t]));
  };
  for (size_t i = 0; i < option.order.size(); ++i) {
    const uint32_t t = option.order[i];
    sum += own(t) - gain[t];
    if (sum <= best) continue;
    best = sum;
    count = i + 1;
  }
  for (size_t i = 0; i < count; ++i) gain[option.order[i]] = own(option.order[i]);
  // A token passes above the threshold.
  const auto even = static_cast<float>(-std::log(price * option.saved));
  if (count < option.order.size()) {
    threshold = option.score[option.order[count]];
  } else if (count > 0) {
    threshold = std::min(even, std::nextafter(option.score[option.order.back()], -1e30f));
  }
  threshold = std::max(threshold, option.sink_score);
  return count;
}

}  // namespace

MlpPath priced_path(std::span<const FittedOption> options, double price) {
  MlpPath path;
  if (!(price > 0) || options.empty()) return path;
  std::vector<double> gain(options.front().score.size(), 0.0);
  for (size_t i = options.size(); i-- > 0;) {
    Gate gate = options[i].gate;
    const auto taken = static_cast<double>(set_threshold(options[i], price, gain, gate.threshold));
    const auto all = static_cast<double>(gain.size());
    if (taken * options[i].saved <= 2 * all * options[i].gate_cost) continue;
    path.options.insert(path.options.begin(), {options[i].packed, std::move(gate)});
  }
  return path;
}

MlpPath whole_layer_path(std::span<const FittedOption> options, double price) {
  MlpPath path;
  double best = 0;
  for (const FittedOption& option : options) {
    const double gain = price * option.saved - option.scale * option.energy_all;
    if (gain <= best) continue;
    best = gain;
    path.options.assign(1, {option.packed, {}});
  }
  return path;
}

std::vector<MlpPath> priced_paths(const FittedLayers& layers, double price, bool whole_layers) {
  std::vector<MlpPath> paths;
  for (const FittedLayer& layer : layers) {
    paths.push_back(whole_layers ? whole_layer_path(layer.options, price)
                                 : priced_path(layer.options, price));
  }
  return paths;
}

}  // namespace halflin
