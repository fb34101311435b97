#include "halflin/train/backward.h"

#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/ops/embedding.h"

namespace halflin {

namespace {

// One batch on its way through the model.
class Pass {
 public:
  // `keep`: what the backward pass needs of every layer.
  Pass(ThreadPool& pool, TrainModel& model, const Batch& batch, const Objective& objective,
       TrainWorkspace& workspace, bool keep)
      : pool_(pool),
        model_(model),
        batch_(batch),
        objective_(objective),
        ws_(workspace),
        shared_{pool, workspace.precision == Precision::kBF16 && has_native_bf16(),
                workspace.weight, workspace.gradient},
        rows_(batch.rows()),
        keep_streams_(keep),
        keep_activations_(keep && !workspace.recompute) {
    const size_t streams = keep_streams_ ? model.config.layers + 1 : 2;
    const size_t layers = keep_activations_ ? model.config.layers : 1;
    if (ws_.residuals.size() < streams) ws_.residuals.resize(streams);
    if (ws_.activations.size() < layers) ws_.activations.resize(layers);
    ws_.positions.resize(rows_);
    for (size_t s = 0; s < batch.sequences(); ++s) {
      const size_t length = batch.offsets[s + 1] - batch.offsets[s];
      if (length > model.max_window) {
        fail("a sequence of {} tokens: the model was made for {}", length, model.max_window);
      }
      for (size_t t = 0; t < length; ++t) ws_.positions[batch.offsets[s] + t] = t;
    }
    result_.gates.resize(model.config.layers);
  }

  void forward() {
    const MatView<float> first = residual(0);
    for (size_t t = 0; t < rows_; ++t) std::fill_n(first.row(t), first.cols, 0.f);
    add_table_rows(pool_, model_.embedding.value.view(), batch_.ids, first);
    if (model_.positions.exists()) {
      add_table_rows(pool_, model_.positions.value.view(), position_ids(), first);
    }
    for (size_t l = 0; l < model_.config.layers; ++l) {
      LayerActivations& kept = activations(l);
      layer_forward(l, kept, residual(l + 1));
      result_.gates[l] = gate_use(model_.layers[l].mlp, kept.mlp, rows_, layer_penalty(l));
      result_.penalty += result_.gates[l].penalty;
    }
  }

  // Losses; and the gradient at the top of the residual stream, where `differentiate`.
  void head(bool differentiate) {
    const MatView<float> top = residual(model_.config.layers);
    const MutableOperand hidden = ws_.final_hidden.view(shared_.is_bf16, rows_, top.cols);
    const Norm norm = norm_of(model_.final_norm);
    normalize(pool_, norm, top, hidden);
    Parameter& weight = model_.config.tied_head ? model_.embedding : model_.head.weight;
    const TrainHead head{weight_operand(shared_, weight), model_.head.bias.value.span()};

    const std::vector<int32_t> labels = next_tokens();
    result_.tokens = static_cast<size_t>(
        std::count_if(labels.begin(), labels.end(), [](int32_t label) { return label >= 0; }));
    if (result_.tokens == 0) fail("a batch without two tokens in a row has nothing to predict");
    HeadTarget target;
    target.labels = labels;
    OperandBuffer teacher_hidden;
    if (objective_.kind == Objective::Kind::kSampled) target.sample_seed = objective_.seed;
    if (objective_.kind == Objective::Kind::kDistill) {
      target.teacher = &objective_.teacher.model->head;
      target.temperature = objective_.teacher.temperature;
      target.teacher_hidden = run_teacher(teacher_hidden);
    }
    HeadGradients gradients;
    if (differentiate) {
      gradients.scale =
          objective_.scale != 0.f ? objective_.scale : 1.f / static_cast<float>(result_.tokens);
      gradients.hidden = ws_.dhidden.view(rows_, top.cols);
      if (weight.trainable()) gradients.weight = weight.gradient.view();
      gradients.bias = model_.head.bias.gradient.span();
    }
    result_.losses.resize(rows_);
    if (target.sample_seed) result_.drawn.resize(rows_);
    head_losses(pool_, head, hidden, target, gradients, ws_.head, result_.losses, result_.drawn);
    for (const float loss : result_.losses) result_.loss_sum += static_cast<double>(loss);
    if (!differentiate) return;
    const MatView<float> dresidual = ws_.dresidual.view(rows_, top.cols);
    for (size_t t = 0; t < rows_; ++t) std::fill_n(dresidual.row(t), top.cols, 0.f);
    norm_backward(model_.final_norm, norm, top, gradients.hidden, dresidual);
  }

  void layers_backward(const MlpOutputHook& hook) {
    const bool embeds = model_.embedding.trainable() || model_.positions.trainable();
    size_t lowest = 0;
    while (!embeds && !hook && lowest < model_.config.layers && !trainable(lowest)) ++lowest;
    for (size_t l = model_.config.layers; l-- > lowest;) {
      LayerActivations& kept = activations(l);
      if (ws_.recompute) layer_forward(l, kept, {});
      if (hook) hook(l, mlp_in(kept), dresidual());
      layer_backward(l, kept, /*wants_input=*/l > lowest || embeds);
    }
    if (model_.embedding.trainable()) {
      add_table_gradient(pool_, dresidual(), batch_.ids, model_.embedding.gradient.view());
    }
    if (model_.positions.trainable()) {
      add_table_gradient(pool_, dresidual(), position_ids(), model_.positions.gradient.view());
    }
  }

  PassResult take_result() { return std::move(result_); }

 private:
  size_t d_model() const { return model_.config.d_model; }
  MatView<float> residual(size_t l) {
    return ws_.residuals[keep_streams_ ? l : l % 2].view(rows_, d_model());
  }
  MatView<float> dresidual() { return ws_.dresidual.view(rows_, d_model()); }
  LayerActivations& activations(size_t l) { return ws_.activations[keep_activations_ ? l : 0]; }
  MutableOperand mlp_in(LayerActivations& kept) {
    return kept.mlp_in.view(shared_.is_bf16, rows_, d_model());
  }

  bool trainable(size_t l) {
    const std::vector<Parameter*> all = parameters(model_.layers[l]);
    return std::any_of(all.begin(), all.end(), [](const Parameter* p) { return p->trainable(); });
  }

  // The penalty of one layer: its own, or its share of the average.
  GatePenalty layer_penalty(size_t l) const {
    if (!objective_.layer_penalties.empty()) return objective_.layer_penalties[l];
    const auto gated =
        std::count_if(model_.layers.begin(), model_.layers.end(), [](const TrainLayer& layer) {
          return layer.mlp.route == Route::kSoft || layer.mlp.route == Route::kHard;
        });
    GatePenalty penalty = objective_.penalty;
    const float share = 1.f / static_cast<float>(std::max<std::ptrdiff_t>(gated, 1));
    penalty.mean_weight *= share;
    penalty.target_weight *= share;
    return penalty;
  }

  std::vector<int32_t> position_ids() const {
    return std::vector<int32_t>(ws_.positions.begin(), ws_.positions.end());
  }

  std::vector<int32_t> next_tokens() const {
    std::vector<int32_t> labels(batch_.ids.begin() + 1, batch_.ids.end());
    labels.push_back(-1);
    for (size_t s = 1; s < batch_.offsets.size(); ++s) {
      if (batch_.offsets[s] > 0) labels[batch_.offsets[s] - 1] = -1;
    }
    return labels;
  }

  Norm norm_of(const TrainNorm& norm) const {
    const auto copy = [](const Parameter& p) {
      return std::vector<float>(p.value.span().begin(), p.value.span().end());
    };
    return {model_.config.norm, model_.config.norm_epsilon, copy(norm.weight), copy(norm.bias)};
  }

  void norm_backward(TrainNorm& norm, const Norm& values, MatView<const float> x,
                     MatView<const float> dy, MatView<float> dx) {
    normalize_backward(pool_, values, x, dy, dx, norm.weight.gradient.span(),
                       norm.bias.gradient.span());
  }

  Operand run_teacher(OperandBuffer& hidden) {
    const Teacher& teacher = objective_.teacher;
    if (teacher.model == nullptr || teacher.workspace == nullptr)
      fail("distilling needs a teacher");
    Matrix<float> stream(rows_, teacher.model->config.d_model);
    embed(*teacher.model, batch_, stream.view());
    run_layers(pool_, *teacher.model, 0, batch_.offsets, stream.view(), *teacher.workspace,
               teacher.paths);
    hidden = OperandBuffer(teacher.model->precision, rows_, stream.cols());
    const MutableOperand view = hidden.view(rows_, stream.cols());
    normalize(pool_, teacher.model->final_norm, stream.view(), view);
    return view;
  }

  template <class F>
  void for_row_blocks(const F& f) {
    pool_.parallel_for((rows_ + kRowBlock - 1) / kRowBlock, [&](size_t block, int) {
      const size_t begin = block * kRowBlock;
      f(begin, std::min(kRowBlock, rows_ - begin));
    });
  }

  void copy(MatView<const float> from, MatView<float> to) {
    for_row_blocks([&](size_t begin, size_t count) {
      for (size_t t = begin; t < begin + count; ++t) std::copy_n(from.row(t), from.cols, to.row(t));
    });
  }

  AttentionShape attention_shape(size_t l) const {
    AttentionShape shape = model_.config.attention;
    if (model_.config.scale_by_layer) shape.scale /= static_cast<float>(l + 1);
    return shape;
  }

  // From residual(l) to `out`. Without `out` (no data) only what the backward pass reads.
  void layer_forward(size_t l, LayerActivations& kept, MatView<float> out) {
    TrainLayer& layer = model_.layers[l];
    const AttentionShape shape = attention_shape(l);
    const MatView<float> in = residual(l);
    const bool parallel = model_.config.parallel_residual;
    const MutableOperand normed = kept.attention_in.view(shared_.is_bf16, rows_, d_model());
    normalize(pool_, norm_of(layer.attention_norm), in, normed);
    const MatView<float> qkv = kept.qkv.view(rows_, layer.qkv.out());
    affine_forward(shared_, layer.qkv, normed, false, qkv);
    if (model_.config.rope.dims != 0) {
      for_row_blocks([&](size_t begin, size_t count) {
        rotate(model_.rope, qkv.row_range(begin, count), shape.heads + shape.kv_heads,
               shape.head_dim, ws_.positions.data() + begin);
      });
    }
    const MutableOperand mixed =
        kept.mixed.view(shared_.is_bf16, rows_, shape.heads * shape.head_dim);
    attend(pool_, shape, qkv, batch_.offsets, ws_.attention, mixed);

    // The stream that the MLP's norm reads, and the one that the MLP adds to.
    MatView<float> middle = in;
    if (!parallel) {
      middle = kept.middle.view(rows_, d_model());
      copy(in, middle);
      affine_forward(shared_, layer.attention_out, mixed, true, middle);
    }
    const MutableOperand x = mlp_in(kept);
    normalize(pool_, norm_of(layer.mlp_norm), middle, x);
    if (out.data != nullptr) {
      copy(middle, out);
      if (parallel) affine_forward(shared_, layer.attention_out, mixed, true, out);
    }
    place_forward(shared_, layer.mlp, x, kept.mlp, out);
  }

  // The gradient of the residual stream, from behind layer l to before it.
  void layer_backward(size_t l, LayerActivations& kept, bool wants_input) {
    TrainLayer& layer = model_.layers[l];
    const AttentionShape shape = attention_shape(l);
    const bool parallel = model_.config.parallel_residual;
    const MatView<float> dstream = dresidual();
    const MatView<float> in = residual(l);
    const MatView<float> dnormed = ws_.dnormed.view(rows_, d_model());
    const bool attention_trains = layer.attention_norm.weight.trainable() ||
                                  layer.attention_norm.bias.trainable() || layer.qkv.trainable() ||
                                  layer.attention_out.trainable();
    const bool norm_trains = layer.mlp_norm.weight.trainable() || layer.mlp_norm.bias.trainable();
    const bool wants_mlp_input = wants_input || norm_trains || (!parallel && attention_trains);

    GatePenalty penalty = layer_penalty(l);
    penalty.mean_weight *= objective_.penalty_scale;
    penalty.target_weight *= objective_.penalty_scale;
    place_backward(shared_, layer.mlp, mlp_in(kept), kept.mlp, dstream, penalty, ws_.place,
                   wants_mlp_input ? dnormed : MatView<float>());
    const Norm mlp_norm = norm_of(layer.mlp_norm);
    const auto pass_mlp_norm = [&](MatView<const float> stream) {
      if (wants_mlp_input) norm_backward(layer.mlp_norm, mlp_norm, stream, dnormed, dstream);
    };
    if (!wants_input && !attention_trains) {
      pass_mlp_norm(parallel ? in : kept.middle.view(rows_, d_model()));
      return;
    }
    if (!parallel) pass_mlp_norm(kept.middle.view(rows_, d_model()));

    const MatView<float> dmixed = ws_.dmixed.view(rows_, shape.heads * shape.head_dim);
    affine_backward(shared_, layer.attention_out,
                    kept.mixed.view(shared_.is_bf16, rows_, dmixed.cols), dstream, dmixed, false);
    // In a parallel layer both branches read the same gradient; only now may it change.
    if (parallel) pass_mlp_norm(in);
    const MatView<float> qkv = kept.qkv.view(rows_, layer.qkv.out());
    const MatView<float> dqkv = ws_.dqkv.view(rows_, layer.qkv.out());
    attend_backward(pool_, shape, qkv, batch_.offsets, dmixed, ws_.attention_gradient, dqkv);
    if (model_.config.rope.dims != 0) {
      for_row_blocks([&](size_t begin, size_t count) {
        rotate_back(model_.rope, dqkv.row_range(begin, count), shape.heads + shape.kv_heads,
                    shape.head_dim, ws_.positions.data() + begin);
      });
    }
    const bool norm_wanted = wants_input || layer.attention_norm.weight.trainable() ||
                             layer.attention_norm.bias.trainable();
    affine_backward(shared_, layer.qkv, kept.attention_in.view(shared_.is_bf16, rows_, d_model()),
                    dqkv, norm_wanted ? dnormed : MatView<float>(), false);
    if (norm_wanted) {
      norm_backward(layer.attention_norm, norm_of(layer.attention_norm), in, dnormed, dstream);
    }
  }

  ThreadPool& pool_;
  TrainModel& model_;
  const Batch& batch_;
  const Objective& objective_;
  TrainWorkspace& ws_;
  TrainPass shared_;
  size_t rows_;
  bool keep_streams_, keep_activations_;
  PassResult result_;
};

}  // namespace

PassResult backward(ThreadPool& pool, TrainModel& model, const Batch& batch,
                    const Objective& objective, TrainWorkspace& workspace,
                    const MlpOutputHook& hook) {
  Pass pass(pool, model, batch, objective, workspace, /*keep=*/true);
  pass.forward();
  pass.head(/*differentiate=*/true);
  pass.layers_backward(hook);
  return pass.take_result();
}

PassResult evaluate(ThreadPool& pool, TrainModel& model, const Batch& batch,
                    const Objective& objective, TrainWorkspace& workspace) {
  Pass pass(pool, model, batch, objective, workspace, /*keep=*/false);
  pass.forward();
  pass.head(/*differentiate=*/false);
  return pass.take_result();
}

}  // namespace halflin
