#include "halflin/model/decode.h"

#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/model/decode_heads.h"
#include "halflin/model/decode_weights.h"
#include "halflin/model/forward.h"
#include "halflin/ops/activation.h"

namespace halflin {

namespace {

constexpr size_t kRowGranule = 16;

// The widest input of a product.
size_t widest(const Config& config) {
  return std::max(
      {config.d_model, config.d_mlp, config.attention.heads * config.attention.head_dim});
}

MutableOperand row_operand(float* row, size_t n) {
  MutableOperand operand;
  operand.data = row;
  operand.rows = 1;
  operand.cols = n;
  operand.stride = n;
  return operand;
}

double flops_of(const DecodeLinear& linear) {
  return 2.0 * static_cast<double>(linear.weight.out) * static_cast<double>(linear.weight.in);
}

}  // namespace

struct Decoder::State {
  ThreadPool& pool;
  Model model;
  std::vector<MlpPath> paths;
  DecodeOptions options;
  DecodeWeights weights;
  std::vector<KeyValueCache> caches;  // one a layer
  size_t position = 0;
  bool routing = false;  // paths are taken

  // A prompt's chunk, made when the first one comes.
  Workspace workspace;
  Matrix<float> residuals;       // [chunk, d]
  Matrix<uint8_t> chunk_routes;  // [layers, chunk]

  // A single token.
  std::vector<float> residual;    // [d]
  std::vector<float> normed;      // [d]
  std::vector<float> mlp_in;      // [d]
  std::vector<float> projected;   // [q | k | v] in the stored order
  std::vector<float> turned;      // the same, heads in order and positions applied
  std::vector<float> mixed;       // [heads * head_dim]
  std::vector<float> hidden, up;  // [d_mlp or more]
  MatvecInput input, mlp_input, hidden_input;
  CachedAttentionScratch attention;

  std::vector<float> logits;
  Matrix<uint8_t> routes;  // [tokens of the last call, layers]
  size_t bytes_read = 0;
  double flops = 0;

  State(ThreadPool& pool, Model loaded, std::vector<MlpPath> given, const DecodeOptions& options)
      : pool(pool),
        model(std::move(loaded)),
        paths(std::move(given)),
        options(options),
        routing(!paths.empty()) {
    if (options.chunk == 0) fail("chunks of no tokens");
    check_paths(model, paths);
    const Config& config = model.config;
    weights = read_decode_weights(pool, model, paths, options);
    const DType format = weights.layers.front().attention_out.weight.dtype;
    for (size_t l = 0; l < config.layers; ++l) {
      caches.emplace_back(config.attention, model.max_window,
                          /*is_f16=*/format != DType::kF32 && !options.exact);
    }
    const size_t d = config.d_model;
    const size_t heads = config.attention.heads + 2 * config.attention.kv_heads;
    size_t most = widest(config);
    for (const DecodeLayer& layer : weights.layers) {
      for (const DecodePath& path : layer.options) {
        most = std::max({most, path.low_rank_in.weight.out, path.narrow.up.weight.out});
      }
    }
    residual.resize(d);
    normed.resize(d);
    mlp_in.resize(d);
    projected.resize(heads * config.attention.head_dim);
    turned.resize(projected.size());
    mixed.resize(config.attention.heads * config.attention.head_dim);
    hidden.resize(most);
    up.resize(most);
    input = MatvecInput(most);
    mlp_input = MatvecInput(d);
    hidden_input = MatvecInput(most);
    logits.resize(config.vocab);
  }

  void check_room(std::span<const int32_t> ids) const {
    if (ids.empty()) fail("no token to go on from");
    if (ids.size() > model.max_window - position) {
      fail("{} tokens after {} do not fit into a context of {}", ids.size(), position,
           model.max_window);
    }
    for (const int32_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= model.config.vocab) {
        fail("token id {} is outside the model's vocabulary of {}", id, model.config.vocab);
      }
    }
  }

  // ---- A prompt ----

  std::span<const float> prefill(std::span<const int32_t> ids) {
    check_room(ids);
    if (ids.size() == 1) return step(ids[0]);
    const size_t layers = model.config.layers;
    const size_t chunk = std::min(options.chunk, model.max_window);
    if (residuals.empty()) {
      workspace = Workspace(model, chunk);
      residuals = Matrix<float>(chunk, model.config.d_model);
      chunk_routes = Matrix<uint8_t>(layers, chunk);
    }
    flops = 0;
    bytes_read = 0;
    routes = Matrix<uint8_t>(ids.size(), layers);
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      const size_t count = std::min(chunk, ids.size() - begin);
      run_chunk(ids.subspan(begin, count), routes.view().row_range(begin, count));
      if (begin + count == ids.size()) {
        std::copy_n(residuals.row(count - 1), residual.size(), residual.begin());
      }
    }
    return head();
  }

  void run_chunk(std::span<const int32_t> ids, MatView<uint8_t> chunk_ways) {
    Batch batch;
    batch.add(ids);
    const MatView<float> rows = residuals.view().row_range(0, ids.size());
    embed(model, batch, rows, position);
    static const MlpPath full;
    for (size_t l = 0; l < model.config.layers; ++l) {
      const Operand x =
          attention_step(pool, model, l, batch.offsets, rows, workspace, {&caches[l], position});
      const std::span<uint8_t> ways(chunk_routes.row(l), ids.size());
      apply_path(pool, model.layers[l].mlp, routing ? paths[l] : full, x,
                 /*accumulate=*/true, rows, workspace.mlp, ways);
      for (size_t t = 0; t < ids.size(); ++t) {
        chunk_ways(t, l) = ways[t];
        flops += layer_flops(l, position + t, ways[t]);
      }
    }
    position += ids.size();
  }

  // ---- A single token ----

  std::span<const float> step(int32_t id) {
    check_room({&id, 1});
    const Config& config = model.config;
    Batch batch;
    batch.add({&id, 1});
    embed(model, batch, MatView<float>(residual.data(), 1, residual.size()), position);
    flops = 0;
    bytes_read = 0;
    routes = Matrix<uint8_t>(1, config.layers);
    for (size_t l = 0; l < config.layers; ++l) {
      const DecodeLayer& layer = weights.layers[l];
      normalize_row(model.layers[l].attention_norm, normed);
      if (config.parallel_residual) normalize_row(model.layers[l].mlp_norm, mlp_in);
      attend_token(l, layer);
      if (!config.parallel_residual) normalize_row(model.layers[l].mlp_norm, mlp_in);
      mlp_input.set(mlp_in, weights.reads_codes);
      const size_t way = routing ? choose_route(paths[l], mlp_in.data()) : 0;
      routes(0, l) = static_cast<uint8_t>(way);
      if (way == 0) {
        add_mlp(layer.mlp, mlp_input);
      } else {
        add_path(layer.options[way - 1]);
      }
      flops += layer_flops(l, position, way);
    }
    ++position;
    return head();
  }

  void normalize_row(const Norm& norm, std::vector<float>& to) {
    normalize(pool, norm, MatView<const float>(residual.data(), 1, residual.size()),
              row_operand(to.data(), to.size()));
  }

  MatvecTask task_of(const DecodeLinear& linear, const MatvecInput& x, float* y, bool accumulate) {
    bytes_read += linear.weight.bytes();
    return {linear.weight, linear.bias.empty() ? nullptr : linear.bias.data(), &x, accumulate, y};
  }

  void attend_token(size_t l, const DecodeLayer& layer) {
    const Config& config = model.config;
    const AttentionShape& a = config.attention;
    input.set(normed, weights.reads_codes);
    std::vector<MatvecTask> tasks;
    float* y = projected.data();
    for (const DecodeLinear& linear : layer.qkv) {
      tasks.push_back(task_of(linear, input, y, false));
      y += linear.weight.out;
    }
    matvec(pool, tasks);

    turn_heads(model, position, projected.data(), turned.data());
    const float* keys = turned.data() + a.heads * a.head_dim;
    const float* values = keys + a.kv_heads * a.head_dim;
    const size_t width = a.kv_heads * a.head_dim;
    caches[l].store(pool, position, MatView<const float>(keys, 1, width),
                    MatView<const float>(values, 1, width));
    AttentionShape shape = a;
    if (config.scale_by_layer) shape.scale /= static_cast<float>(l + 1);
    attend_cached(pool, shape, caches[l], position, turned.data(), attention, mixed.data());
    bytes_read += seen(position) * caches[l].bytes_per_position();

    input.set(mixed, weights.reads_codes);
    const MatvecTask out = task_of(layer.attention_out, input, residual.data(), true);
    matvec(pool, {&out, 1});
  }

  // residual += mlp(x).
  void add_mlp(const DecodeMlp& mlp, const MatvecInput& x) {
    const size_t n = mlp.up.weight.out;
    const MatvecTask up_task =
        task_of(mlp.up, x, mlp.gate.empty() ? hidden.data() : up.data(), false);
    const MatvecTask gate_task =
        mlp.gate.empty() ? MatvecTask() : task_of(mlp.gate, x, hidden.data(), false);
    const size_t granules = (n + kRowGranule - 1) / kRowGranule;
    const size_t parts = std::min(static_cast<size_t>(pool.size()), granules);
    pool.parallel_for(parts, [&](size_t part, int) {
      const size_t begin = part * granules / parts * kRowGranule;
      const size_t end = std::min((part + 1) * granules / parts * kRowGranule, n);
      for (const MatvecTask* task : {&gate_task, &up_task}) {
        if (task->weight.empty()) continue;
        matvec_rows(task->weight, task->bias, *task->x, begin, end, false, task->y);
      }
      const MatView<float> h(hidden.data() + begin, 1, end - begin);
      if (mlp.gate.empty()) {
        activate(pool, mlp.activation, h, row_operand(h.data, h.cols));
      } else {
        activate_gated(pool, mlp.activation, h, MatView<const float>(up.data() + begin, 1, h.cols),
                       row_operand(h.data, h.cols));
      }
    });
    hidden_input.set({hidden.data(), n}, weights.reads_codes);
    const MatvecTask down = task_of(mlp.down, hidden_input, residual.data(), true);
    matvec(pool, {&down, 1});
  }

  void add_path(const DecodePath& path) {
    if (!path.affine.empty()) {
      const MatvecTask task = task_of(path.affine, mlp_input, residual.data(), true);
      matvec(pool, {&task, 1});
    }
    if (!path.low_rank_in.empty()) {
      const MatvecTask in = task_of(path.low_rank_in, mlp_input, hidden.data(), false);
      matvec(pool, {&in, 1});
      hidden_input.set({hidden.data(), path.low_rank_in.weight.out}, weights.reads_codes);
      const MatvecTask out = task_of(path.low_rank_out, hidden_input, residual.data(), true);
      matvec(pool, {&out, 1});
    }
    if (!path.narrow.up.empty()) add_mlp(path.narrow, mlp_input);
    for (size_t i = 0; i < path.constant.size(); ++i) residual[i] += path.constant[i];
  }

  std::span<const float> head() {
    normalize_row(model.final_norm, normed);
    input.set(normed, weights.reads_codes);
    const MatvecTask task = task_of(weights.head, input, logits.data(), false);
    matvec(pool, {&task, 1});
    flops += flops_of(weights.head);
    return logits;
  }

  // ---- Counting ----

  size_t seen(size_t at) const {  // positions that position `at` attends to
    const size_t window = model.config.attention.window;
    return window != 0 ? std::min(at + 1, window) : at + 1;
  }

  double layer_flops(size_t l, size_t at, size_t way) const {
    const DecodeLayer& layer = weights.layers[l];
    const AttentionShape& a = model.config.attention;
    double sum =
        flops_of(layer.attention_out) + 4.0 * static_cast<double>(a.heads * a.head_dim * seen(at));
    for (const DecodeLinear& linear : layer.qkv) sum += flops_of(linear);
    return sum + (way == 0 ? path_flops(model.layers[l].mlp)
                           : path_flops(*paths[l].options[way - 1].path));
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
size_t Decoder::position() const { return state_->position; }

std::span<const float> Decoder::prefill(std::span<const int32_t> ids) {
  return state_->prefill(ids);
}
std::span<const float> Decoder::step(int32_t id) { return state_->step(id); }

void Decoder::rewind(size_t position) {
  if (position > state_->position) {
    fail("back to position {}, but there are {}", position, state_->position);
  }
  state_->position = position;
}

void Decoder::use_paths(bool on) { state_->routing = on && !state_->paths.empty(); }

MatView<const uint8_t> Decoder::routes() const { return state_->routes.view(); }
size_t Decoder::bytes_read() const { return state_->bytes_read; }
double Decoder::flops() const { return state_->flops; }

DecodeMemory Decoder::memory() const {
  const State& state = *state_;
  DecodeMemory memory;
  for (const auto& [name, tensor] : state.model.file.tensors) memory.mapped += tensor.bytes.size();
  for (const Layer& layer : state.model.layers) {
    for (const Linear* linear :
         {&layer.qkv, &layer.attention_out, &layer.mlp.gate, &layer.mlp.up, &layer.mlp.down}) {
      if (!linear->empty()) memory.packed += linear->bytes();
    }
  }
  for (const Linear& chunk : state.model.head.chunks) memory.packed += chunk.bytes();
  memory.converted = state.weights.copied_bytes;
  for (const KeyValueCache& cache : state.caches) memory.cache += cache.bytes();
  return memory;
}

std::vector<std::string> Decoder::formats() const {
  std::vector<std::string> lines;
  for (const auto& [format, count] : state_->weights.formats) {
    lines.push_back(fmt::format("{} x {}", count, format));
  }
  return lines;
}

}  // namespace halflin
