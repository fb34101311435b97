// The forward pass, in the pieces that measuring needs. All windows of a batch are rows of one
// residual stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/model/model.h"

namespace halflin {

// Sequences packed one after another. Sequence s has rows [offsets[s], offsets[s + 1]).
struct Batch {
  std::vector<int32_t> ids;
  std::vector<size_t> offsets{0};

  size_t rows() const { return ids.size(); }
  size_t sequences() const { return offsets.size() - 1; }
  void add(std::span<const int32_t> sequence);
};

// Buffers for batches of up to `rows` tokens. One per thread that runs forward passes.
struct Workspace {
  OperandBuffer normed;  // [rows, d]
  Matrix<float> qkv;     // [rows, (heads + 2 kv_heads) head_dim]
  OperandBuffer mixed;   // [rows, heads * head_dim]
  OperandBuffer mlp_in;  // [rows, d]
  AttentionScratch attention;
  MlpScratch mlp;
  std::vector<size_t> positions;

  Workspace() = default;
  Workspace(const Model& model, size_t rows);
};

// hook_embed: residual [rows, d] = token embedding (+ learned position). Sequences begin at
// position `first`.
void embed(const Model& model, const Batch& batch, MatView<float> residual, size_t first = 0);

// One layer's cache, and how many positions it holds: the batch is one sequence that goes on from
// there, and its own keys and values are stored behind them.
struct CachedPast {
  KeyValueCache* cache = nullptr;
  size_t count = 0;
};

// Adds layer `layer`'s attention to the residual stream (hook_resid_pre in, hook_resid_mid out) and
// returns the MLP's input, the output of the norm before it, valid until the next call.
MutableOperand attention_step(ThreadPool& pool, const Model& model, size_t layer,
                              std::span<const size_t> offsets, MatView<float> residual,
                              Workspace& workspace, const CachedPast& past = {});

// Runs layers [first, config.layers) with the given paths, one a layer or none for the full MLPs.
void run_layers(ThreadPool& pool, const Model& model, size_t first, std::span<const size_t> offsets,
                MatView<float> residual, Workspace& workspace, std::span<const MlpPath> paths = {});

// losses[t]: loss in nats of predicting row t + 1 of the same sequence; the last row of each
// sequence predicts nothing and gets 0.
void final_losses(ThreadPool& pool, const Model& model, const Batch& batch,
                  MatView<const float> residual, Workspace& workspace, std::span<float> losses);

// logits [rows, vocab].
void final_logits(ThreadPool& pool, const Model& model, MatView<const float> residual,
                  Workspace& workspace, MatView<float> logits);

}  // namespace halflin
