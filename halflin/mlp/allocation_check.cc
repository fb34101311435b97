// What an allocation must satisfy, whoever made it.
#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/io/printable.h"
#include "halflin/mlp/allocation.h"

namespace halflin {

namespace {

void check_linear(const PlainLinear& linear, size_t out, size_t in, bool with_bias,
                  const std::string& place) {
  if (linear.empty()) {
    if (!linear.bias.empty()) fail("{}: a bias without a weight", place);
    return;
  }
  if (linear.weight.rows() != out || linear.weight.cols() != in) {
    fail("{}: expected [{}, {}], found [{}, {}]", place, out, in, linear.weight.rows(),
         linear.weight.cols());
  }
  if (!linear.bias.empty() && (!with_bias || linear.bias.size() != out)) {
    fail("{}: expected {} biases, found {}", place, with_bias ? out : 0, linear.bias.size());
  }
}

void check_path(const PlainPath& path, const AllocationModel& model, const std::string& place) {
  const size_t d = model.d_model;
  const size_t rank = path.low_rank_in.weight.rows();
  const size_t kept = path.neurons.kept.size();
  if (path.low_rank_in.empty() != path.low_rank_out.empty()) {
    fail("{}: low rank: one of its two matrices is missing", place);
  }
  // The forward pass keeps rank and neurons in buffers as wide as the full MLP's.
  if (rank > std::max(d, model.d_mlp)) fail("{}: rank {} is too large", place, rank);
  for (size_t i = 0; i < kept; ++i) {
    const int32_t j = path.neurons.kept[i];
    if (j < 0 || static_cast<size_t>(j) >= model.d_mlp ||
        (i > 0 && j <= path.neurons.kept[i - 1])) {
      fail("{}: expected neurons in rising order below {}, found {}", place, model.d_mlp, j);
    }
  }
  if (!model.gated_mlp && !path.neurons.gate.empty()) {
    fail("{}: neurons with a gate, but the model's MLP has none", place);
  }
  each_linear(path, [&](const std::string& part, const PlainLinear& linear) {
    const size_t out = part == "low_rank_in"                            ? rank
                       : part == "neurons.gate" || part == "neurons.up" ? kept
                                                                        : d;
    const size_t in = part == "low_rank_out" ? rank : part == "neurons.down" ? kept : d;
    const bool with_bias = part != "low_rank_in" && part != "neurons.down";
    check_linear(linear, out, in, with_bias, fmt::format("{}: {}", place, part));
  });
  if (!path.constant.empty() && path.constant.size() != d) {
    fail("{}: constant: expected {} numbers, found {}", place, d, path.constant.size());
  }
}

void check_gate(const Gate& gate, size_t d, const std::string& place) {
  const size_t units = gate.hidden_bias.size();
  if (gate.hidden.size() != units * d || gate.weight.size() != (units == 0 ? d : units)) {
    fail("{}: gate: expected weights for {} features, found {} (hidden layer: {} for {} units)",
         place, d, gate.weight.size(), gate.hidden.size(), units);
  }
}

}  // namespace

void check_allocation(const Allocation& allocation, const std::string& place) {
  const AllocationModel& model = allocation.model;
  if (allocation.layers.size() != model.layers) {
    fail("{}: expected {} layers, found {}", place, model.layers, allocation.layers.size());
  }
  for (size_t l = 0; l < allocation.layers.size(); ++l) {
    const std::vector<PlainOption>& options = allocation.layers[l];
    if (options.size() > 254) fail("{}: layer {}: more than 254 options", place, l);
    for (size_t i = 0; i < options.size(); ++i) {
      const std::string at = fmt::format("{}: layer {}, option {}", place, l, i);
      if (i > 0 && !options[i - 1].gate) fail("{}: the option before takes every token", at);
      check_path(options[i].path, model, at);
      if (options[i].gate) check_gate(*options[i].gate, model.d_model, at);
    }
  }
}

void check_allocation_model(const Allocation& allocation, const AllocationModel& model,
                            const std::string& path) {
  const AllocationModel& own = allocation.model;
  const auto differ = [&](const char* what, const auto& for_, const auto& found) {
    if (for_ != found) {
      fail("{}: made for {}, whose {} is {}, not for {}, whose {} is {}", path, in_quotes(own.name),
           what, for_, in_quotes(model.name), what, found);
    }
  };
  differ("family", own.family, model.family);
  differ("number of layers", own.layers, model.layers);
  differ("width", own.d_model, model.d_model);
  differ("number of neurons a layer", own.d_mlp, model.d_mlp);
  differ("gated MLP", own.gated_mlp, model.gated_mlp);
  differ("sha256", own.sha256, model.sha256);
}

}  // namespace halflin
