#include "halflin/train/allocation_places.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halflin/base/error.h"

namespace halflin {

namespace {

Parameter parameter_of(const Matrix<float>& value) {
  Parameter p;
  p.value = Matrix<float>(value.rows(), value.cols());
  std::ranges::copy(value.span(), p.value.span().begin());
  return p;
}

Parameter row_of(std::span<const float> values) {
  Parameter p;
  if (values.empty()) return p;
  p.value = Matrix<float>(1, values.size());
  std::ranges::copy(values, p.value.span().begin());
  return p;
}

TrainAffine train_affine(const PlainLinear& linear) {
  TrainAffine affine;
  if (linear.empty()) return affine;
  affine.weight = parameter_of(linear.weight);
  affine.bias = row_of(linear.bias);
  return affine;
}

PlainLinear plain_linear(const TrainAffine& affine) {
  PlainLinear linear;
  linear.weight = parameter_of(affine.weight.value).value;
  const std::span<const float> bias = affine.bias.value.span();
  linear.bias.assign(bias.begin(), bias.end());
  return linear;
}

// Of a layer of the full MLP, the rows (`down`: the columns) of some neurons.
TrainAffine kept_rows(const TrainAffine& full, std::span<const int32_t> kept) {
  TrainAffine part;
  if (!full.exists()) return part;
  part.weight.value = Matrix<float>(kept.size(), full.in());
  if (full.bias.exists()) part.bias.value = Matrix<float>(1, kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto j = static_cast<size_t>(kept[i]);
    std::copy_n(full.weight.value.row(j), full.in(), part.weight.value.row(i));
    if (full.bias.exists()) part.bias.value(0, i) = full.bias.value(0, j);
  }
  return part;
}
TrainAffine kept_columns(const TrainAffine& full, std::span<const int32_t> kept) {
  TrainAffine part;
  part.weight.value = Matrix<float>(full.out(), kept.size());
  for (size_t r = 0; r < full.out(); ++r) {
    for (size_t i = 0; i < kept.size(); ++i) {
      part.weight.value(r, i) = full.weight.value(r, static_cast<size_t>(kept[i]));
    }
  }
  return part;
}

TrainMlp train_neurons(const PlainNeurons& neurons, const TrainMlp& full) {
  TrainMlp narrow;
  narrow.activation = full.activation;
  narrow.gate =
      neurons.gate.empty() ? kept_rows(full.gate, neurons.kept) : train_affine(neurons.gate);
  narrow.up = neurons.up.empty() ? kept_rows(full.up, neurons.kept) : train_affine(neurons.up);
  narrow.down =
      neurons.down.empty() ? kept_columns(full.down, neurons.kept) : train_affine(neurons.down);
  return narrow;
}

// p > 1/2 where the score says no: logistic(threshold - score).
TrainGate train_gate(const Gate& gate) {
  TrainGate turned;
  turned.activation = Activation::kGeluErf;
  if (!gate.hidden_bias.empty()) {
    turned.hidden.weight.value = Matrix<float>(gate.hidden_bias.size(), gate.inputs());
    std::ranges::copy(gate.hidden, turned.hidden.weight.value.span().begin());
    turned.hidden.bias = row_of(gate.hidden_bias);
  }
  turned.out.weight = row_of(gate.weight);
  for (float& w : turned.out.weight.value.span()) w = -w;
  turned.out.bias = row_of(std::vector<float>{gate.threshold - gate.bias});
  return turned;
}

Gate turned_gate(const TrainGate& gate, const std::string& name) {
  Gate turned;
  turned.name = name;
  if (gate.hidden.exists()) {
    if (gate.activation != Activation::kGeluErf) {
      fail("a gate's hidden layer has the exact GELU in an allocation, no other activation");
    }
    const std::span<const float> hidden = gate.hidden.weight.value.span();
    turned.hidden.assign(hidden.begin(), hidden.end());
    turned.hidden_bias.assign(gate.hidden.out(), 0.f);
    if (gate.hidden.bias.exists()) {
      std::ranges::copy(gate.hidden.bias.value.span(), turned.hidden_bias.begin());
    }
  }
  for (const float w : gate.out.weight.value.span()) turned.weight.push_back(-w);
  if (gate.out.bias.exists()) turned.bias = -gate.out.bias.value(0, 0);
  // A score of exactly 0 is p = 1/2, which takes the cheap path.
  turned.threshold = -std::numeric_limits<float>::denorm_min();
  turned.params = turned.weight.size() + turned.hidden.size() + turned.hidden_bias.size() + 1;
  return turned;
}

}  // namespace

PlainLinear plain_linear(const Affine& affine) {
  PlainLinear linear;
  linear.weight = Matrix<float>(affine.weight.cols(), affine.weight.rows());
  for (size_t i = 0; i < affine.weight.rows(); ++i) {
    for (size_t j = 0; j < affine.weight.cols(); ++j) linear.weight(j, i) = affine.weight(i, j);
  }
  linear.bias = affine.bias;
  return linear;
}

void set_places(TrainModel& model, const Allocation& allocation) {
  const AllocationModel& about = allocation.model;
  if (about.layers != model.layers.size() || about.d_model != model.config.d_model ||
      about.d_mlp != model.config.d_mlp || allocation.layers.size() != about.layers) {
    fail("the allocation is for a model of other shapes");
  }
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const std::vector<PlainOption>& options = allocation.layers[l];
    MlpPlace& place = model.layers[l].mlp;
    place.route = Route::kFull;
    place.cheap = TrainCheap();
    place.gate = TrainGate();
    if (options.empty()) continue;
    if (options.size() > 1) {
      fail("layer {}: {} options in one MLP's place cannot be trained, only one", l,
           options.size());
    }
    const PlainPath& path = options.front().path;
    place.cheap.affine = train_affine(path.affine);
    place.cheap.low_rank_in = train_affine(path.low_rank_in);
    place.cheap.low_rank_out = train_affine(path.low_rank_out);
    place.cheap.constant = row_of(path.constant);
    if (!path.neurons.kept.empty()) {
      if (!place.full) fail("layer {}: neurons of an MLP that is not there", l);
      place.cheap.narrow = train_neurons(path.neurons, *place.full);
    }
    place.route = Route::kCheap;
    if (options.front().gate) {
      place.gate = train_gate(*options.front().gate);
      place.route = Route::kHard;
    }
    set_trainable(parameters(place), false);
  }
  name_parameters(model);
}

void read_places(const TrainModel& model, const std::string& gate_name, Allocation& allocation) {
  for (size_t l = 0; l < model.layers.size(); ++l) {
    if (allocation.layers[l].empty()) continue;
    PlainOption& option = allocation.layers[l].front();
    const MlpPlace& place = model.layers[l].mlp;
    const TrainCheap& cheap = place.cheap;
    option.path.affine = plain_linear(cheap.affine);
    option.path.low_rank_in = plain_linear(cheap.low_rank_in);
    option.path.low_rank_out = plain_linear(cheap.low_rank_out);
    const std::span<const float> constant = cheap.constant.value.span();
    option.path.constant.assign(constant.begin(), constant.end());
    if (cheap.narrow) {
      option.path.neurons.gate = plain_linear(cheap.narrow->gate);
      option.path.neurons.up = plain_linear(cheap.narrow->up);
      option.path.neurons.down = plain_linear(cheap.narrow->down);
    }
    if (place.gate.exists()) {
      option.gate = turned_gate(place.gate, option.gate ? option.gate->name : gate_name);
    }
  }
}

}  // namespace halflin
