#include "halflin/model/forward.h"

#include <algorithm>

#include "halflin/base/error.h"

namespace halflin {

void Batch::add(std::span<const int32_t> sequence) {
  ids.insert(ids.end(), sequence.begin(), sequence.end());
  offsets.push_back(ids.size());
}

Workspace::Workspace(const Model& model, size_t rows)
    : normed(model.precision, rows, model.config.d_model),
      qkv(rows, (model.config.attention.heads + 2 * model.config.attention.kv_heads) *
                    model.config.attention.head_dim),
      mixed(model.precision, rows, model.config.attention.heads * model.config.attention.head_dim),
      mlp_in(model.precision, rows, model.config.d_model),
      mlp(model.precision, rows, model.config.d_model, model.config.d_mlp, model.config.gated_mlp) {
}

void embed(const Model& model, const Batch& batch, MatView<float> residual, size_t first) {
  const TensorInfo& table = model.file.at(model.layout.names.embedding + ".weight");
  const size_t d = model.config.d_model;
  for (size_t s = 0; s < batch.sequences(); ++s) {
    const size_t begin = batch.offsets[s];
    const size_t length = batch.offsets[s + 1] - begin;
    if (first + length > model.max_window) {
      fail("a sequence of {} tokens: the model was loaded for {}", first + length,
           model.max_window);
    }
    for (size_t t = 0; t < length; ++t) {
      const int32_t id = batch.ids[begin + t];
      if (id < 0 || static_cast<size_t>(id) >= model.config.vocab) {
        fail("token id {} is outside the model's vocabulary of {}", id, model.config.vocab);
      }
      read_f32(table, static_cast<size_t>(id) * d, residual.row_span(begin + t));
      if (model.config.learned_positions) {
        const float* position = model.positions.row(first + t);
        float* row = residual.row(begin + t);
        for (size_t i = 0; i < d; ++i) row[i] += position[i];
      }
    }
  }
}

MutableOperand attention_step(ThreadPool& pool, const Model& model, size_t layer,
                              std::span<const size_t> offsets, MatView<float> residual,
                              Workspace& workspace, const CachedPast& past) {
  const Config& config = model.config;
  const Layer& weights = model.layers[layer];
  const size_t rows = residual.rows;
  const size_t head_dim = config.attention.head_dim;

  const MutableOperand normed = workspace.normed.view(rows, config.d_model);
  const MutableOperand mlp_in = workspace.mlp_in.view(rows, config.d_model);
  normalize(pool, weights.attention_norm, residual, normed);
  if (config.parallel_residual) normalize(pool, weights.mlp_norm, residual, mlp_in);

  const MatView<float> qkv(workspace.qkv.data(), rows, workspace.qkv.cols());
  weights.qkv.forward(pool, normed, qkv);
  if (config.rope.dims != 0) {
    std::vector<size_t>& positions = workspace.positions;
    positions.resize(rows);
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      for (size_t t = offsets[s]; t < offsets[s + 1]; ++t)
        positions[t] = past.count + t - offsets[s];
    }
    const size_t blocks = (rows + kRowBlock - 1) / kRowBlock;
    pool.parallel_for(blocks, [&](size_t block, int) {
      const size_t begin = block * kRowBlock;
      // Queries and keys lie side by side, and turn alike.
      rotate(model.rope, qkv.row_range(begin, std::min(kRowBlock, rows - begin)),
             config.attention.heads + config.attention.kv_heads, head_dim,
             positions.data() + begin);
    });
  }
  AttentionShape shape = config.attention;
  if (config.scale_by_layer) shape.scale /= static_cast<float>(layer + 1);
  const MutableOperand mixed = workspace.mixed.view(rows, shape.heads * head_dim);
  attend(pool, shape, qkv, offsets, workspace.attention, mixed, Past{past.cache, past.count});
  if (past.cache != nullptr) {
    past.cache->store(
        pool, past.count, qkv.col_range(shape.heads * head_dim, shape.kv_heads * head_dim),
        qkv.col_range((shape.heads + shape.kv_heads) * head_dim, shape.kv_heads * head_dim));
  }
  weights.attention_out.forward(pool, mixed, residual, {.accumulate = true});

  if (!config.parallel_residual) normalize(pool, weights.mlp_norm, residual, mlp_in);
  return mlp_in;
}

void run_layers(ThreadPool& pool, const Model& model, size_t first, std::span<const size_t> offsets,
                MatView<float> residual, Workspace& workspace, std::span<const MlpPath> paths) {
  static const MlpPath full;
  for (size_t layer = first; layer < model.config.layers; ++layer) {
    const Operand x = attention_step(pool, model, layer, offsets, residual, workspace);
    apply_path(pool, model.layers[layer].mlp, paths.empty() ? full : paths[layer], x,
               /*accumulate=*/true, residual, workspace.mlp);
  }
}

void final_losses(ThreadPool& pool, const Model& model, const Batch& batch,
                  MatView<const float> residual, Workspace& workspace, std::span<float> losses) {
  const MutableOperand normed = workspace.normed.view(residual.rows, residual.cols);
  normalize(pool, model.final_norm, residual, normed);
  std::vector<int32_t> targets(batch.ids.begin() + 1, batch.ids.end());
  targets.push_back(-1);
  for (size_t s = 1; s < batch.offsets.size(); ++s) targets[batch.offsets[s] - 1] = -1;
  next_token_losses(pool, model.head, normed, targets, losses);
}

void final_logits(ThreadPool& pool, const Model& model, MatView<const float> residual,
                  Workspace& workspace, MatView<float> logits) {
  const MutableOperand normed = workspace.normed.view(residual.rows, residual.cols);
  normalize(pool, model.final_norm, residual, normed);
  compute_logits(pool, model.head, normed, logits);
}

}  // namespace halflin
