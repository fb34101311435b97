#include "halflin/train/parameters.h"

#include <algorithm>

#include "halflin/base/error.h"

namespace halflin {

namespace {

void append(std::vector<Parameter*>& all, TrainNorm& norm) {
  all.push_back(&norm.weight);
  all.push_back(&norm.bias);
}

void append(std::vector<Parameter*>& all, TrainAffine& affine) {
  all.push_back(&affine.weight);
  all.push_back(&affine.bias);
}

void remove_absent(std::vector<Parameter*>& all) {
  std::erase_if(all, [](const Parameter* p) { return !p->exists(); });
}

void name(TrainNorm& norm, const std::string& prefix) {
  norm.weight.name = prefix + ".weight";
  norm.bias.name = prefix + ".bias";
}

void name(TrainAffine& affine, const std::string& prefix) {
  affine.weight.name = prefix + ".weight";
  affine.bias.name = prefix + ".bias";
}

void name(TrainMlp& mlp, const std::string& prefix) {
  name(mlp.gate, prefix + ".gate");
  name(mlp.up, prefix + ".up");
  name(mlp.down, prefix + ".down");
}

}  // namespace

TrainModel make_train_model(const Config& config, size_t max_window, bool attention_bias,
                            bool mlp_bias) {
  if (max_window > config.max_positions) {
    fail("windows of {} tokens, but the model is made for {} positions", max_window,
         config.max_positions);
  }
  const size_t d = config.d_model;
  const AttentionShape& a = config.attention;
  const auto affine = [](size_t out, size_t in, bool bias) {
    TrainAffine layer;
    layer.weight.value = Matrix<float>(out, in);
    if (bias) layer.bias.value = Matrix<float>(1, out);
    return layer;
  };
  const auto norm = [&] {
    TrainNorm norm;
    norm.weight.value = Matrix<float>(1, d);
    if (config.norm == NormKind::kLayerNorm) norm.bias.value = Matrix<float>(1, d);
    return norm;
  };
  TrainModel model;
  model.config = config;
  model.max_window = max_window;
  model.embedding.value = Matrix<float>(config.vocab, d);
  if (config.learned_positions) model.positions.value = Matrix<float>(config.max_positions, d);
  model.layers.resize(config.layers);
  for (TrainLayer& layer : model.layers) {
    layer.attention_norm = norm();
    layer.mlp_norm = norm();
    layer.qkv = affine((a.heads + 2 * a.kv_heads) * a.head_dim, d, attention_bias);
    layer.attention_out = affine(d, a.heads * a.head_dim, attention_bias);
    TrainMlp mlp;
    mlp.activation = config.activation;
    if (config.gated_mlp) mlp.gate = affine(config.d_mlp, d, mlp_bias);
    mlp.up = affine(config.d_mlp, d, mlp_bias);
    mlp.down = affine(d, config.d_mlp, mlp_bias);
    layer.mlp.full = std::move(mlp);
  }
  model.final_norm = norm();
  if (!config.tied_head) model.head = affine(config.vocab, d, false);
  if (config.rope.dims != 0) model.rope = make_rope_table(config.rope, max_window);
  name_parameters(model);
  return model;
}

void name_parameters(TrainModel& model) {
  model.embedding.name = "embedding";
  model.positions.name = "positions";
  for (size_t l = 0; l < model.layers.size(); ++l) {
    TrainLayer& layer = model.layers[l];
    const std::string prefix = fmt::format("layers.{}.", l);
    name(layer.attention_norm, prefix + "attention_norm");
    name(layer.mlp_norm, prefix + "mlp_norm");
    name(layer.qkv, prefix + "qkv");
    name(layer.attention_out, prefix + "attention_out");
    MlpPlace& place = layer.mlp;
    if (place.full) name(*place.full, prefix + "mlp.full");
    name(place.cheap.affine, prefix + "mlp.cheap.affine");
    name(place.cheap.low_rank_in, prefix + "mlp.cheap.low_rank_in");
    name(place.cheap.low_rank_out, prefix + "mlp.cheap.low_rank_out");
    if (place.cheap.narrow) name(*place.cheap.narrow, prefix + "mlp.cheap.narrow");
    place.cheap.constant.name = prefix + "mlp.cheap.constant";
    name(place.gate.hidden, prefix + "mlp.gate.hidden");
    name(place.gate.out, prefix + "mlp.gate.out");
  }
  name(model.final_norm, "final_norm");
  name(model.head, "head");
}

std::vector<Parameter*> parameters(TrainLayer& layer) {
  std::vector<Parameter*> all;
  append(all, layer.attention_norm);
  append(all, layer.qkv);
  append(all, layer.attention_out);
  append(all, layer.mlp_norm);
  const std::vector<Parameter*> place = parameters(layer.mlp);
  all.insert(all.end(), place.begin(), place.end());
  remove_absent(all);
  return all;
}

std::vector<Parameter*> parameters(TrainModel& model) {
  std::vector<Parameter*> all{&model.embedding, &model.positions};
  for (TrainLayer& layer : model.layers) {
    const std::vector<Parameter*> part = parameters(layer);
    all.insert(all.end(), part.begin(), part.end());
  }
  append(all, model.final_norm);
  append(all, model.head);
  remove_absent(all);
  return all;
}

void set_trainable(std::span<Parameter* const> parameters, bool trainable) {
  for (Parameter* p : parameters) {
    if (p->trainable() == trainable) continue;
    p->gradient = trainable ? Matrix<float>(p->value.rows(), p->value.cols()) : Matrix<float>();
  }
}

void zero_gradients(ThreadPool& pool, TrainModel& model) {
  constexpr size_t kPart = 1u << 18;
  for (Parameter* p : parameters(model)) {
    const std::span<float> gradient = p->gradient.span();
    pool.parallel_for((gradient.size() + kPart - 1) / kPart, [&](size_t task, int) {
      const size_t begin = task * kPart;
      std::fill_n(gradient.data() + begin, std::min(kPart, gradient.size() - begin), 0.f);
    });
  }
}

}  // namespace halflin
