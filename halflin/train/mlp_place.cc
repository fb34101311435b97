#include "halflin/train/mlp_place.h"

#include <algorithm>
#include <cmath>

#include "halflin/base/error.h"
#include "halflin/ops/activation.h"

namespace halflin {

namespace {

bool is_gated(const MlpPlace& place) {
  return place.route == Route::kSoft || place.route == Route::kHard;
}

void check(const MlpPlace& place) {
  if (place.route != Route::kCheap && !place.full) fail("this MLP place has no full MLP");
  if (is_gated(place) && !place.gate.exists()) fail("this MLP place has no gate");
}

void mlp_forward(TrainPass& pass, const TrainMlp& mlp, Operand x, MlpActivations& kept,
                 bool accumulate, MatView<float> y) {
  const size_t neurons = mlp.up.out();
  const MatView<float> up = kept.up.view(x.rows, neurons);
  const MutableOperand hidden = kept.hidden.view(pass.is_bf16, x.rows, neurons);
  affine_forward(pass, mlp.up, x, false, up);
  if (mlp.gate.exists()) {
    const MatView<float> gate = kept.gate.view(x.rows, neurons);
    affine_forward(pass, mlp.gate, x, false, gate);
    activate_gated(pass.pool, mlp.activation, gate, up, hidden);
  } else {
    activate(pass.pool, mlp.activation, up, hidden);
  }
  if (y.data != nullptr) affine_forward(pass, mlp.down, hidden, accumulate, y);
}

void mlp_backward(TrainPass& pass, TrainMlp& mlp, Operand x, MlpActivations& kept,
                  MatView<const float> dy, PlaceScratch& scratch, MatView<float> dx,
                  bool accumulate_dx) {
  const size_t neurons = mlp.up.out();
  const MutableOperand hidden = kept.hidden.view(pass.is_bf16, x.rows, neurons);
  const bool deeper = dx.data != nullptr || mlp.up.trainable() || mlp.gate.trainable();
  const MatView<float> dhidden = deeper ? scratch.dhidden.view(x.rows, neurons) : MatView<float>();
  affine_backward(pass, mlp.down, hidden, dy, dhidden, false);
  if (!deeper) return;
  const MatView<float> up = kept.up.view(x.rows, neurons);
  if (mlp.gate.exists()) {
    const MatView<float> gate = kept.gate.view(x.rows, neurons);
    const MatView<float> dgate = scratch.dgate.view(x.rows, neurons);
    activate_gated_backward(pass.pool, mlp.activation, gate, up, dhidden, dgate, dhidden);
    affine_backward(pass, mlp.gate, x, dgate, dx, accumulate_dx);
    accumulate_dx = true;
  } else {
    activate_backward(pass.pool, mlp.activation, up, dhidden, dhidden);
  }
  affine_backward(pass, mlp.up, x, dhidden, dx, accumulate_dx);
}

void cheap_forward(TrainPass& pass, const TrainCheap& cheap, Operand x, PlaceActivations& kept,
                   bool accumulate, MatView<float> y) {
  const bool wanted = y.data != nullptr;
  if (cheap.affine.exists() && wanted) {
    affine_forward(pass, cheap.affine, x, accumulate, y);
    accumulate = true;
  }
  if (cheap.low_rank_in.exists()) {
    const MutableOperand inner = kept.low_rank.view(pass.is_bf16, x.rows, cheap.low_rank_in.out());
    if (pass.is_bf16) {
      Matrix<float> sums(x.rows, inner.cols);
      affine_forward(pass, cheap.low_rank_in, x, false, sums.view());
      convert(pass.pool, sums.view(), inner);
    } else {
      affine_forward(pass, cheap.low_rank_in, x, false,
                     {static_cast<float*>(inner.data), inner.rows, inner.cols});
    }
    if (wanted) {
      affine_forward(pass, cheap.low_rank_out, inner, accumulate, y);
      accumulate = true;
    }
  }
  if (cheap.narrow) {
    mlp_forward(pass, *cheap.narrow, x, kept.narrow, accumulate, y);
    accumulate = true;
  }
  if (!wanted) return;
  const float* constant = cheap.constant.exists() ? cheap.constant.value.data() : nullptr;
  for (size_t t = 0; t < x.rows && (constant != nullptr || !accumulate); ++t) {
    float* row = y.row(t);
    if (!accumulate) std::fill_n(row, y.cols, 0.f);
    for (size_t i = 0; i < y.cols && constant != nullptr; ++i) row[i] += constant[i];
  }
}

void cheap_backward(TrainPass& pass, TrainCheap& cheap, Operand x, PlaceActivations& kept,
                    MatView<const float> dy, PlaceScratch& scratch, MatView<float> dx,
                    bool accumulate_dx) {
  if (cheap.affine.exists()) {
    affine_backward(pass, cheap.affine, x, dy, dx, accumulate_dx);
    accumulate_dx = true;
  }
  if (cheap.low_rank_in.exists()) {
    const size_t rank = cheap.low_rank_in.out();
    const MutableOperand inner = kept.low_rank.view(pass.is_bf16, x.rows, rank);
    const MatView<float> dinner = scratch.dlow_rank.view(x.rows, rank);
    affine_backward(pass, cheap.low_rank_out, inner, dy, dinner, false);
    affine_backward(pass, cheap.low_rank_in, x, dinner, dx, accumulate_dx);
    accumulate_dx = true;
  }
  if (cheap.narrow) {
    mlp_backward(pass, *cheap.narrow, x, kept.narrow, dy, scratch, dx, accumulate_dx);
    accumulate_dx = true;
  }
  if (cheap.constant.trainable()) {
    add_column_sums(pass.pool, dy, cheap.constant.gradient.span());
  }
  for (size_t t = 0; t < dx.rows && !accumulate_dx; ++t) std::fill_n(dx.row(t), dx.cols, 0.f);
}

void gate_forward(TrainPass& pass, const TrainGate& gate, Operand x, PlaceActivations& kept) {
  const MatView<float> probability = kept.probability.view(x.rows, 1);
  Operand input = x;
  if (gate.hidden.exists()) {
    const MatView<float> hidden = kept.gate_hidden.view(x.rows, gate.hidden.out());
    affine_forward(pass, gate.hidden, x, false, hidden);
    const MutableOperand neurons = kept.gate_neurons.view(pass.is_bf16, x.rows, hidden.cols);
    activate(pass.pool, gate.activation, hidden, neurons);
    input = neurons;
  }
  affine_forward(pass, gate.out, input, false, probability);
  for (size_t t = 0; t < x.rows; ++t) {
    probability(t, 0) = 1.f / (1.f + std::exp(-probability(t, 0)));
  }
}

void gate_backward(TrainPass& pass, TrainGate& gate, Operand x, PlaceActivations& kept,
                   MatView<const float> dscore, PlaceScratch& scratch, MatView<float> dx,
                   bool accumulate_dx) {
  if (!gate.hidden.exists()) {
    affine_backward(pass, gate.out, x, dscore, dx, accumulate_dx);
    return;
  }
  const size_t n = gate.hidden.out();
  const MatView<float> hidden = kept.gate_hidden.view(x.rows, n);
  const MutableOperand neurons = kept.gate_neurons.view(pass.is_bf16, x.rows, n);
  const MatView<float> dneurons = scratch.dhidden.view(x.rows, n);
  affine_backward(pass, gate.out, neurons, dscore, dneurons, false);
  activate_backward(pass.pool, gate.activation, hidden, dneurons, dneurons);
  affine_backward(pass, gate.hidden, x, dneurons, dx, accumulate_dx);
}

// The full MLP's share of a token's output.
float full_share(Route route, float probability) {
  if (route == Route::kSoft) return probability;
  return probability > 0.5f ? 1.f : 0.f;
}

void append(std::vector<Parameter*>& all, TrainAffine& affine) {
  all.push_back(&affine.weight);
  all.push_back(&affine.bias);
}

void append(std::vector<Parameter*>& all, TrainMlp& mlp) {
  append(all, mlp.gate);
  append(all, mlp.up);
  append(all, mlp.down);
}

}  // namespace

std::vector<Parameter*> parameters(MlpPlace& place) {
  std::vector<Parameter*> all;
  if (place.full) append(all, *place.full);
  append(all, place.cheap.affine);
  append(all, place.cheap.low_rank_in);
  append(all, place.cheap.low_rank_out);
  if (place.cheap.narrow) append(all, *place.cheap.narrow);
  all.push_back(&place.cheap.constant);
  append(all, place.gate.hidden);
  append(all, place.gate.out);
  std::erase_if(all, [](const Parameter* p) { return !p->exists(); });
  return all;
}

void place_forward(TrainPass& pass, const MlpPlace& place, Operand x, PlaceActivations& kept,
                   MatView<float> y) {
  check(place);
  if (place.route == Route::kFull) {
    return mlp_forward(pass, *place.full, x, kept.full, true, y);
  }
  if (place.route == Route::kCheap) return cheap_forward(pass, place.cheap, x, kept, true, y);
  const MatView<float> full = kept.full_out.view(x.rows, x.cols);
  const MatView<float> cheap = kept.cheap_out.view(x.rows, x.cols);
  mlp_forward(pass, *place.full, x, kept.full, false, full);
  cheap_forward(pass, place.cheap, x, kept, false, cheap);
  gate_forward(pass, place.gate, x, kept);
  if (y.data == nullptr) return;
  const MatView<float> probability = kept.probability.view(x.rows, 1);
  for (size_t t = 0; t < x.rows; ++t) {
    const float share = full_share(place.route, probability(t, 0));
    for (size_t i = 0; i < x.cols; ++i) {
      y(t, i) += share * full(t, i) + (1.f - share) * cheap(t, i);
    }
  }
}

GateUse gate_use(const MlpPlace& place, PlaceActivations& kept, size_t rows,
                 const GatePenalty& penalty) {
  GateUse use;
  if (!is_gated(place) || rows == 0) return use;
  const MatView<float> probability = kept.probability.view(rows, 1);
  for (size_t t = 0; t < rows; ++t) {
    use.mean += static_cast<double>(probability(t, 0));
    use.full += probability(t, 0) > 0.5f ? 1.0 : 0.0;
  }
  use.mean /= static_cast<double>(rows);
  use.full /= static_cast<double>(rows);
  const double miss = use.mean - static_cast<double>(penalty.target);
  use.penalty = static_cast<double>(penalty.mean_weight) * use.mean +
                static_cast<double>(penalty.target_weight) * miss * miss;
  return use;
}

GateUse place_backward(TrainPass& pass, MlpPlace& place, Operand x, PlaceActivations& kept,
                       MatView<const float> dy, const GatePenalty& penalty, PlaceScratch& scratch,
                       MatView<float> dx) {
  if (place.route == Route::kFull) {
    mlp_backward(pass, *place.full, x, kept.full, dy, scratch, dx, false);
    return {};
  }
  if (place.route == Route::kCheap) {
    cheap_backward(pass, place.cheap, x, kept, dy, scratch, dx, false);
    return {};
  }
  const GateUse use = gate_use(place, kept, x.rows, penalty);
  const double pull = static_cast<double>(penalty.mean_weight) +
                      2.0 * static_cast<double>(penalty.target_weight) *
                          (use.mean - static_cast<double>(penalty.target));
  const float dmean = static_cast<float>(pull / static_cast<double>(x.rows));
  const MatView<float> full = kept.full_out.view(x.rows, x.cols);
  const MatView<float> cheap = kept.cheap_out.view(x.rows, x.cols);
  const MatView<float> probability = kept.probability.view(x.rows, 1);
  const MatView<float> dfull = scratch.dfull.view(x.rows, x.cols);
  const MatView<float> dcheap = scratch.dcheap.view(x.rows, x.cols);
  const MatView<float> dscore = scratch.dscore.view(x.rows, 1);
  for (size_t t = 0; t < x.rows; ++t) {
    const float p = probability(t, 0);
    const float share = full_share(place.route, p);
    double sum = 0;
    for (size_t i = 0; i < x.cols; ++i) {
      sum += static_cast<double>(dy(t, i) * (full(t, i) - cheap(t, i)));
      dfull(t, i) = share * dy(t, i);
      dcheap(t, i) = (1.f - share) * dy(t, i);
    }
    dscore(t, 0) = (static_cast<float>(sum) + dmean) * p * (1.f - p);
  }
  mlp_backward(pass, *place.full, x, kept.full, dfull, scratch, dx, false);
  cheap_backward(pass, place.cheap, x, kept, dcheap, scratch, dx, true);
  gate_backward(pass, place.gate, x, kept, dscore, scratch, dx, true);
  return use;
}

}  // namespace halflin
