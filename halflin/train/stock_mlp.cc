#include "halflin/train/stock_mlp.h"

#include <algorithm>

#include "halflin/base/error.h"

namespace halflin {

namespace {

// Units of an affine map work on multiples of their input: where an implementation looks GELU up in
// a table of half floats (llama.cpp), large values are exact and small ones matter less. 256 leaves
// half floats room for inputs up to 255. Both are powers of two: no rounding.
constexpr float kScale = 256.f;
// act(32) is 32 in float32, and in half floats, for all of these activations.
constexpr float kOpenGate = 32.f;

Matrix<float> copy(const Matrix<float>& from) {
  Matrix<float> to(from.rows(), from.cols());
  std::copy(from.span().begin(), from.span().end(), to.span().begin());
  return to;
}

Matrix<float> row_of(std::span<const float> values) {
  Matrix<float> row(values.empty() ? 0 : 1, values.size());
  std::copy(values.begin(), values.end(), row.span().begin());
  return row;
}

TrainAffine plain_affine(const PlainLinear& linear) {
  TrainAffine affine;
  affine.weight.value = copy(linear.weight);
  affine.bias.value = row_of(linear.bias);
  return affine;
}

// The rows of `from` that are kept.
TrainAffine kept_rows(const TrainAffine& from, std::span<const int32_t> kept) {
  TrainAffine to;
  if (!from.exists()) return to;
  to.weight.value = Matrix<float>(kept.size(), from.in());
  if (from.bias.exists()) to.bias.value = Matrix<float>(1, kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto j = static_cast<size_t>(kept[i]);
    std::copy_n(from.weight.value.row(j), from.in(), to.weight.value.row(i));
    if (from.bias.exists()) to.bias.value(0, i) = from.bias.value(0, j);
  }
  return to;
}

TrainMlp kept_neurons(const PlainNeurons& neurons, const TrainMlp& full) {
  TrainMlp narrow;
  narrow.activation = full.activation;
  const auto part = [&](const PlainLinear& own, const TrainAffine& original) {
    return own.empty() ? kept_rows(original, neurons.kept) : plain_affine(own);
  };
  narrow.gate = part(neurons.gate, full.gate);
  narrow.up = part(neurons.up, full.up);
  if (!neurons.down.empty()) {
    narrow.down = plain_affine(neurons.down);
    return narrow;
  }
  const Matrix<float>& down = full.down.weight.value;
  narrow.down.weight.value = Matrix<float>(down.rows(), neurons.kept.size());
  for (size_t r = 0; r < down.rows(); ++r) {
    for (size_t i = 0; i < neurons.kept.size(); ++i) {
      narrow.down.weight.value(r, i) = down(r, static_cast<size_t>(neurons.kept[i]));
    }
  }
  return narrow;
}

TrainCheap cheap_path(const PlainPath& path, const TrainMlp& full) {
  TrainCheap cheap;
  if (!path.affine.empty()) cheap.affine = plain_affine(path.affine);
  if (!path.low_rank_in.empty()) {
    cheap.low_rank_in = plain_affine(path.low_rank_in);
    cheap.low_rank_out = plain_affine(path.low_rank_out);
  }
  if (!path.neurons.kept.empty()) cheap.narrow = kept_neurons(path.neurons, full);
  cheap.constant.value = row_of(path.constant);
  return cheap;
}

// A stock MLP that is filled unit by unit. Biases are there while it is filled.
class Filling {
 public:
  Filling(const Config& config, bool gated) : d_(config.d_model) {
    mlp_.activation = config.activation;
    const size_t h = config.d_mlp;
    const auto make = [](TrainAffine& affine, size_t out, size_t in) {
      affine.weight.value = Matrix<float>(out, in);
      affine.bias.value = Matrix<float>(1, out);
    };
    if (gated) make(mlp_.gate, h, d_);
    make(mlp_.up, h, d_);
    make(mlp_.down, d_, h);
  }

  void add_neurons(const TrainMlp& narrow) {
    for (size_t j = 0; j < narrow.up.out(); ++j, ++used_) {
      copy_unit(narrow.gate, j, mlp_.gate);
      copy_unit(narrow.up, j, mlp_.up);
      for (size_t r = 0; r < d_; ++r) down(r) = narrow.down.weight.value(r, j);
    }
    add_constant(narrow.down.bias.value);
  }

  // out (in x): unit pairs or open gates for each row of `in`; empty: x itself.
  void add_affine(const Matrix<float>& in, const TrainAffine& out) {
    const bool gated = mlp_.gate.exists();
    for (size_t i = 0; i < out.in(); ++i) {
      for (const float sign : {1.f, -1.f}) {
        if (gated && sign < 0) continue;
        const float scale = sign * (gated ? 1.f : kScale);
        float* up = mlp_.up.weight.value.row(used_);
        if (in.empty()) {
          up[i] = scale;
        } else {
          for (size_t c = 0; c < d_; ++c) up[c] = scale * in(i, c);
        }
        if (gated) mlp_.gate.bias.value(0, used_) = kOpenGate;
        const float factor = sign / (gated ? kOpenGate : kScale);
        for (size_t r = 0; r < d_; ++r) down(r) = factor * out.weight.value(r, i);
        ++used_;
      }
    }
    add_constant(out.bias.value);
  }

  void add_constant(const Matrix<float>& values) {
    for (size_t r = 0; r < values.size(); ++r) mlp_.down.bias.value(0, r) += values(0, r);
  }

  TrainMlp take() { return std::move(mlp_); }

 private:
  float& down(size_t row) { return mlp_.down.weight.value(row, used_); }

  void copy_unit(const TrainAffine& from, size_t unit, TrainAffine& to) const {
    if (!from.exists()) return;
    std::copy_n(from.weight.value.row(unit), d_, to.weight.value.row(used_));
    if (from.bias.exists()) to.bias.value(0, used_) = from.bias.value(0, unit);
  }

  size_t d_;
  size_t used_ = 0;
  TrainMlp mlp_;
};

bool any_nonzero(const Matrix<float>& values) {
  return std::any_of(values.span().begin(), values.span().end(), [](float v) { return v != 0; });
}

std::vector<TrainAffine*> affines(TrainMlp& mlp) {
  std::vector<TrainAffine*> all = {&mlp.up, &mlp.down};
  if (mlp.gate.exists()) all.push_back(&mlp.gate);
  return all;
}

bool needs_bias(TrainMlp& mlp) {
  const std::vector<TrainAffine*> all = affines(mlp);
  return std::any_of(all.begin(), all.end(),
                     [](const TrainAffine* a) { return any_nonzero(a->bias.value); });
}

void check_place(const MlpPlace& place, const Config& config, size_t layer) {
  if (place.route != Route::kCheap) {
    fail("layer {}: its place is gated, and a stock MLP treats all tokens alike", layer);
  }
  const TrainCheap& cheap = place.cheap;
  if (cheap.narrow && cheap.narrow->activation != config.activation) {
    fail("layer {}: its neurons have another activation than the model's", layer);
  }
  const bool affine = cheap.affine.exists() || cheap.low_rank_out.exists();
  if (affine && config.activation == Activation::kNone) {
    fail("layer {}: the model's MLPs have no activation that would cancel out", layer);
  }
  const size_t units = stock_units(place, config.gated_mlp);
  if (units <= config.d_mlp) return;
  const size_t kept = cheap.narrow ? cheap.narrow->up.out() : 0;
  fail(
      "layer {}: {} neurons and an affine map of {} inputs take {} hidden units, and the model's "
      "MLPs have {}",
      layer, kept, config.gated_mlp ? units - kept : (units - kept) / 2, units, config.d_mlp);
}

}  // namespace

void apply_allocation(TrainModel& model, const Allocation& allocation, const std::string& path) {
  for (size_t l = 0; l < allocation.layers.size(); ++l) {
    const std::vector<PlainOption>& options = allocation.layers[l];
    if (options.empty()) continue;
    if (options[0].gate) {
      fail("{}: layer {} is gated: only allocations without gates can be exported", path, l);
    }
    MlpPlace& place = model.layers[l].mlp;
    if (!place.full) fail("{}: layer {}: the model has no MLP there", path, l);
    place.cheap = cheap_path(options[0].path, *place.full);
    place.route = Route::kCheap;
  }
}

size_t stock_units(const MlpPlace& place, bool gated) {
  if (place.route != Route::kCheap) return place.full ? place.full->up.out() : 0;
  const TrainCheap& cheap = place.cheap;
  const size_t inputs = (cheap.affine.exists() ? cheap.affine.in() : 0) +
                        (cheap.low_rank_out.exists() ? cheap.low_rank_out.in() : 0);
  return (cheap.narrow ? cheap.narrow->up.out() : 0) + (gated ? inputs : 2 * inputs);
}

void make_stock(TrainModel& model) {
  const Config& config = model.config;
  bool biases = false;
  for (size_t l = 0; l < config.layers; ++l) {
    MlpPlace& place = model.layers[l].mlp;
    if (place.route != Route::kFull) {
      check_place(place, config, l);
      const TrainCheap& cheap = place.cheap;
      Filling filling(config, config.gated_mlp);
      if (cheap.narrow) filling.add_neurons(*cheap.narrow);
      if (cheap.affine.exists()) filling.add_affine({}, cheap.affine);
      if (cheap.low_rank_out.exists()) {
        filling.add_affine(cheap.low_rank_in.weight.value, cheap.low_rank_out);
      }
      filling.add_constant(cheap.constant.value);
      place = MlpPlace();
      place.full = filling.take();
    }
    if (!place.full) fail("layer {}: there is no MLP to export", l);
    if (!needs_bias(*place.full)) continue;
    if (config.family == "mistral") {
      fail("layer {}: its path needs biases, and the family has none in its MLPs", l);
    }
    biases = true;
  }
  const bool always = config.family == "gpt2" || config.family == "gpt_neox";
  for (TrainLayer& layer : model.layers) {
    for (TrainAffine* affine : affines(*layer.mlp.full)) {
      if (!biases && !always) {
        affine->bias.value = Matrix<float>();
      } else if (!affine->bias.exists()) {
        affine->bias.value = Matrix<float>(1, affine->out());
      }
    }
  }
  name_parameters(model);
}

}  // namespace halflin
