#include "halflin/measure/fitted_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace halflin {

namespace {

// One layer's options at one price, on the tokens of the train split.
class Pricing {
 public:
  Pricing(std::span<const FittedOption> options, double price)
      : options_(options), price_(price), tokens_(options.front().score.size()) {
    for (const FittedOption& option : options) {
      for (const float score : option.score) {
        gains_.push_back(price * option.saved - std::exp(-static_cast<double>(score)));
      }
    }
  }

  struct Choice {
    double gain = 0;
    std::vector<float> thresholds;  // of the options in use, in their order
  };
  // With the options `used`, indices in rising order.
  Choice choose(std::span<const size_t> used) {
    Choice out;
    out.thresholds.resize(used.size());
    gain_.assign(tokens_, 0.0);
    owner_.assign(tokens_, used.size());
    for (size_t k = used.size(); k-- > 0;) out.thresholds[k] = set_threshold(used[k], k);
    for (const double gain : gain_) out.gain += gain;
    std::vector<size_t> taken(used.size() + 1);
    for (const size_t k : owner_) ++taken[k];
    size_t scored = tokens_;
    for (size_t k = 0; k < used.size(); ++k) {
      const FittedOption& option = options_[used[k]];
      out.gain -= price_ * (static_cast<double>(scored) * option.gate_cost +
                            static_cast<double>(tokens_) * option.fixed_cost);
      scored -= taken[k];
    }
    return out;
  }

 private:
  // The lowest score that may take option `i`, such that the tokens gain most, given gain_: what
  // each gains without the option, and then with it. Tokens that take it become those of `k`.
  float set_threshold(size_t i, size_t k) {
    const FittedOption& option = options_[i];
    const double* own = gains_.data() + i * tokens_;
    double sum = 0, best = 0;
    size_t count = 0;
    for (size_t n = 0; n < option.order.size(); ++n) {
      const uint32_t t = option.order[n];
      if (option.score[t] <= option.sink_score) break;
      sum += own[t] - gain_[t];
      if (sum <= best) continue;
      best = sum;
      count = n + 1;
    }
    for (size_t n = 0; n < count; ++n) {
      const uint32_t t = option.order[n];
      gain_[t] = own[t];
      owner_[t] = k;
    }
    // A token passes above the threshold.
    float threshold = option.sink_score;
    if (count < option.order.size()) {
      threshold = std::max(threshold, option.score[option.order[count]]);
    } else if (count > 0) {
      const auto even = static_cast<float>(-std::log(price_ * option.saved));
      const float below = std::nextafter(option.score[option.order.back()], -1e30f);
      threshold = std::max(threshold, std::min(even, below));
    }
    return threshold;
  }

  std::span<const FittedOption> options_;
  double price_;
  size_t tokens_;
  std::vector<double> gains_;  // [options, tokens] of taking each
  std::vector<double> gain_;   // [tokens]
  std::vector<size_t> owner_;  // [tokens] the option in use that each takes
};

}  // namespace

MlpPath priced_path(std::span<const FittedOption> options, double price, size_t most) {
  MlpPath path;
  if (!(price > 0) || options.empty()) return path;
  Pricing pricing(options, price);
  std::vector<size_t> used(options.size());
  std::iota(used.begin(), used.end(), size_t{0});
  Pricing::Choice choice = pricing.choose(used);
  while (!used.empty()) {
    std::vector<size_t> fewer;
    Pricing::Choice best{-std::numeric_limits<double>::infinity(), {}};
    for (size_t left_out = 0; left_out < used.size(); ++left_out) {
      std::vector<size_t> others = used;
      others.erase(others.begin() + static_cast<ptrdiff_t>(left_out));
      Pricing::Choice without = pricing.choose(others);
      if (without.gain <= best.gain) continue;
      best = std::move(without);
      fewer = std::move(others);
    }
    if (used.size() <= most && best.gain < choice.gain) break;
    choice = std::move(best);
    used = std::move(fewer);
  }
  for (size_t k = 0; k < used.size(); ++k) {
    const FittedOption& option = options[used[k]];
    Gate gate = option.gate;
    gate.threshold = choice.thresholds[k];
    path.options.push_back({option.packed, std::move(gate)});
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

std::vector<MlpPath> priced_paths(const FittedLayers& layers, double price, bool whole_layers,
                                  size_t most) {
  std::vector<MlpPath> paths;
  for (const FittedLayer& layer : layers) {
    paths.push_back(whole_layers ? whole_layer_path(layer.options, price)
                                 : priced_path(layer.options, price, most));
  }
  return paths;
}

}  // namespace halflin
