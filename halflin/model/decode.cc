#include "halflin/model/decode.h"

#include "halflin/base/error.h"
#include "halflin/model/forward.h"

namespace halflin {

// For now every call runs the whole sequence anew.
struct Decoder::State {
  ThreadPool& pool;
  Model model;
  std::vector<MlpPath> paths;
  DecodeOptions options;
  std::vector<int32_t> ids;
  std::vector<float> logits;
  Matrix<uint8_t> routes;
  size_t last_tokens = 0;

  State(ThreadPool& pool, Model model, std::vector<MlpPath> paths, const DecodeOptions& options)
      : pool(pool), model(std::move(model)), paths(std::move(paths)), options(options) {
    if (!this->paths.empty() && this->paths.size() != this->model.config.layers) {
      fail("{}: paths for {} layers, but the model has {}", this->model.path, this->paths.size(),
           this->model.config.layers);
    }
  }

  std::span<const float> append(std::span<const int32_t> more) {
    if (more.empty()) fail("no token to go on from");
    if (more.size() > model.max_window - ids.size()) {
      fail("{} tokens after {}: the context holds {}", more.size(), ids.size(), model.max_window);
    }
    Batch batch;
    batch.ids = ids;
    batch.add(more);
    Workspace workspace(model, batch.rows());
    Matrix<float> residual(batch.rows(), model.config.d_model);
    embed(model, batch, residual.view());
    static const MlpPath full;
    Matrix<uint8_t> all(model.config.layers, batch.rows());
    for (size_t l = 0; l < model.config.layers; ++l) {
      const Operand x = attention_step(pool, model, l, batch.offsets, residual.view(), workspace);
      apply_path(pool, model.layers[l].mlp, paths.empty() ? full : paths[l], x,
                 /*accumulate=*/true, residual.view(), workspace.mlp, all.view().row_span(l));
    }
    logits.resize(model.config.vocab);
    final_logits(pool, model, residual.view().row_range(batch.rows() - 1, 1), workspace,
                 MatView<float>(logits.data(), 1, logits.size()));
    last_tokens = more.size();
    routes = Matrix<uint8_t>(last_tokens, model.config.layers);
    for (size_t t = 0; t < last_tokens; ++t) {
      for (size_t l = 0; l < model.config.layers; ++l) routes(t, l) = all(l, ids.size() + t);
    }
    ids = std::move(batch.ids);
    return logits;
  }
};

Decoder::Decoder(ThreadPool& pool, Model model, std::vector<MlpPath> paths,
                 const DecodeOptions& options)
    : state_(std::make_unique<State>(pool, std::move(model), std::move(paths), options)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

const Model& Decoder::model() const { return state_->model; }
size_t Decoder::context() const { return state_->model.max_window; }
size_t Decoder::position() const { return state_->ids.size(); }

std::span<const float> Decoder::prefill(std::span<const int32_t> ids) {
  return state_->append(ids);
}
std::span<const float> Decoder::step(int32_t id) { return state_->append({&id, 1}); }

void Decoder::rewind(size_t position) {
  if (position > state_->ids.size()) {
    fail("back to position {} of {}", position, state_->ids.size());
  }
  state_->ids.resize(position);
}

MatView<const uint8_t> Decoder::routes() const { return state_->routes.view(); }
size_t Decoder::bytes_read() const { return 0; }
double Decoder::flops() const { return 0; }
DecodeMemory Decoder::memory() const { return {}; }
std::vector<std::string> Decoder::formats() const { return {}; }

}  // namespace halflin
