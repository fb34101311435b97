#include "halflin/model/model.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"

namespace halflin {

namespace {

std::string shape_text(std::span<const size_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Looks tensors up, checks their shapes, and remembers which were asked for.
class Inventory {
 public:
  Inventory(const TensorFile& file) : file_(file) {}

  void require(const std::string& name, std::vector<size_t> shape) {
    const TensorInfo& tensor = file_.at(name);
    if (tensor.shape != shape) {
      fail("{}: tensor {}: the configuration asks for shape {}, found {}", tensor.file, name,
           shape_text(shape), shape_text(tensor.shape));
    }
    used_.insert(name);
    parameters_ += tensor.elements();
  }

  // `expected`: whether the bias should be there; unset: either way.
  void bias(const std::string& layer, size_t size, std::optional<bool> expected) {
    const std::string name = layer + ".bias";
    if (expected.value_or(file_.find(name) != nullptr)) require(name, {size});
  }

  void linear(const std::string& layer, size_t in, size_t out, bool in_by_out,
              std::optional<bool> has_bias) {
    require(layer + ".weight", in_by_out ? std::vector{in, out} : std::vector{out, in});
    bias(layer, out, has_bias);
  }

  void mark(const std::string& name) { used_.insert(name); }

  void refuse_surplus(const std::vector<std::string>& ignored) const {
    for (const auto& [name, tensor] : file_.tensors) {
      if (used_.contains(name)) continue;
      const bool known = std::any_of(
          ignored.begin(), ignored.end(),
          [&name = name](const std::string& part) { return name.find(part) != std::string::npos; });
      if (!known) {
        fail("{}: tensor {} {} has no place in this model", tensor.file, name,
             shape_text(tensor.shape));
      }
    }
  }

  size_t parameters() const { return parameters_; }

 private:
  const TensorFile& file_;
  std::set<std::string> used_;
  size_t parameters_ = 0;
};

// Completes what only the tensors can tell, and checks everything else against them.
void check_tensors(Checkpoint& checkpoint) {
  Config& config = checkpoint.architecture.config;
  TensorLayout& layout = checkpoint.architecture.layout;
  TensorNames& names = layout.names;
  const TensorFile& file = checkpoint.file;
  const bool gguf = names.prefix.empty();
  if (file.find(names.embedding + ".weight") == nullptr) add_prefix(names);

  const TensorInfo& embedding = file.at(names.embedding + ".weight");
  if (gguf) {
    // GGUF names neither of these.
    if (embedding.shape.size() == 2) config.vocab = embedding.shape[0];
    config.tied_head = file.find(names.head + ".weight") == nullptr;
  }
  Inventory inventory(file);
  const size_t d = config.d_model;
  const AttentionShape& a = config.attention;
  inventory.require(names.embedding + ".weight", {config.vocab, d});
  if (config.learned_positions) {
    inventory.require(names.positions + ".weight", {config.max_positions, d});
  }
  const auto norm = [&](const std::string& name) {
    inventory.require(name + ".weight", {d});
    if (config.norm == NormKind::kLayerNorm) inventory.require(name + ".bias", {d});
  };
  for (size_t l = 0; l < config.layers; ++l) {
    norm(layer_name(names.attention_norm, l));
    norm(layer_name(names.mlp_norm, l));
    const auto linear = [&](const std::string& pattern, size_t in, size_t out,
                            std::optional<bool> has_bias) {
      inventory.linear(layer_name(pattern, l), in, out, layout.in_by_out, has_bias);
    };
    const size_t q = a.heads * a.head_dim;
    const size_t kv = a.kv_heads * a.head_dim;
    if (!names.qkv.empty()) {
      linear(names.qkv, d, q + 2 * kv, layout.attention_bias);
    } else {
      linear(names.q, d, q, layout.attention_bias);
      linear(names.k, d, kv, layout.attention_bias);
      linear(names.v, d, kv, layout.attention_bias);
    }
    linear(names.attention_out, q, d, layout.attention_bias);
    const std::vector<size_t>& none = checkpoint.without_mlp;
    if (std::find(none.begin(), none.end(), l) != none.end()) continue;
    if (config.gated_mlp) linear(names.gate, d, config.d_mlp, layout.mlp_bias);
    linear(names.up, d, config.d_mlp, layout.mlp_bias);
    linear(names.down, config.d_mlp, d, layout.mlp_bias);
  }
  norm(names.final_norm);
  if (!config.tied_head) {
    inventory.require(names.head + ".weight", {config.vocab, d});
    inventory.bias(names.head, config.vocab, std::nullopt);
  } else {
    inventory.mark(names.head + ".weight");  // some files repeat the embedding
  }
  if (!layout.rope_factors.empty() && file.find(layout.rope_factors) != nullptr) {
    inventory.require(layout.rope_factors, {config.rope.dims / 2});
  }
  inventory.refuse_surplus(names.ignored);
  checkpoint.parameters = inventory.parameters();
}

Matrix<float> read_matrix(const TensorFile& file, const std::string& name) {
  const TensorInfo& tensor = file.at(name);
  Matrix<float> matrix(tensor.shape[0], tensor.shape.size() > 1 ? tensor.shape[1] : 1);
  read_f32(tensor, 0, matrix.span());
  return matrix;
}

std::vector<float> read_vector(const TensorFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->elements());
  read_f32(*tensor, 0, values);
  return values;
}

Norm read_norm(const Model& model, const std::string& name) {
  Norm norm;
  norm.kind = model.config.norm;
  norm.epsilon = model.config.norm_epsilon;
  norm.weight = read_vector(model.file, name + ".weight");
  norm.bias = read_vector(model.file, name + ".bias");
  return norm;
}

Linear read_linear(const Model& model, const std::string& name) {
  const Matrix<float> weight = read_matrix(model.file, name + ".weight");
  return Linear(weight.view(), model.layout.in_by_out, read_vector(model.file, name + ".bias"),
                model.precision);
}

// Row r of the fused projection comes from row source[r] of the tensor (a column for Conv1D).
std::vector<size_t> per_head_order(const AttentionShape& a) {
  std::vector<size_t> source;
  for (size_t part = 0; part < 3; ++part) {
    for (size_t h = 0; h < a.heads; ++h) {
      for (size_t i = 0; i < a.head_dim; ++i) {
        source.push_back((h * 3 + part) * a.head_dim + i);
      }
    }
  }
  return source;
}

// llama.cpp stores the dimensions that turn together side by side: 0, 1 is the first pair. The
// rotate-half form has them half a head apart.
std::vector<size_t> deinterleaved_order(size_t heads, size_t head_dim, size_t rotary) {
  std::vector<size_t> source;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < head_dim; ++i) {
      const size_t half = rotary / 2;
      const size_t from = i < half ? 2 * i : i < rotary ? 2 * (i - half) + 1 : i;
      source.push_back(h * head_dim + from);
    }
  }
  return source;
}

Linear read_qkv(const Model& model, size_t layer) {
  const TensorNames& names = model.layout.names;
  const AttentionShape& a = model.config.attention;
  const size_t d = model.config.d_model;
  if (!names.qkv.empty()) {
    const std::string name = layer_name(names.qkv, layer);
    if (model.layout.qkv_order == QkvOrder::kConcatenated) return read_linear(model, name);
    const Matrix<float> stored = read_matrix(model.file, name + ".weight");
    const std::vector<float> stored_bias = read_vector(model.file, name + ".bias");
    const std::vector<size_t> source = per_head_order(a);
    Matrix<float> weight(stored.rows(), d);
    std::vector<float> bias(stored_bias.size());
    for (size_t r = 0; r < source.size(); ++r) {
      std::copy_n(stored.row(source[r]), d, weight.row(r));
      if (!bias.empty()) bias[r] = stored_bias[source[r]];
    }
    return Linear(weight.view(), false, bias, model.precision);
  }
  const size_t rows = (a.heads + 2 * a.kv_heads) * a.head_dim;
  Matrix<float> weight(rows, d);
  std::vector<float> bias(rows, 0.f);
  bool has_bias = false;
  size_t begin = 0;
  const auto append = [&](const std::string& pattern, size_t heads, bool rotates) {
    const std::string name = layer_name(pattern, layer);
    const Matrix<float> stored = read_matrix(model.file, name + ".weight");
    const std::vector<float> stored_bias = read_vector(model.file, name + ".bias");
    has_bias = has_bias || !stored_bias.empty();
    const size_t rotary = rotates && model.layout.interleaved_rope ? model.config.rope.dims : 0;
    const std::vector<size_t> source = deinterleaved_order(heads, a.head_dim, rotary);
    for (size_t r = 0; r < source.size(); ++r) {
      std::copy_n(stored.row(source[r]), d, weight.row(begin + r));
      if (!stored_bias.empty()) bias[begin + r] = stored_bias[source[r]];
    }
    begin += source.size();
  };
  append(names.q, a.heads, true);
  append(names.k, a.kv_heads, true);
  append(names.v, a.kv_heads, false);
  if (!has_bias) bias.clear();
  return Linear(weight.view(), false, bias, model.precision);
}

Layer read_layer(const Model& model, size_t layer) {
  const TensorNames& names = model.layout.names;
  Layer out;
  out.attention_norm = read_norm(model, layer_name(names.attention_norm, layer));
  out.mlp_norm = read_norm(model, layer_name(names.mlp_norm, layer));
  out.qkv = read_qkv(model, layer);
  out.attention_out = read_linear(model, layer_name(names.attention_out, layer));
  out.mlp.activation = model.config.activation;
  if (model.config.gated_mlp) out.mlp.gate = read_linear(model, layer_name(names.gate, layer));
  out.mlp.up = read_linear(model, layer_name(names.up, layer));
  out.mlp.down = read_linear(model, layer_name(names.down, layer));
  return out;
}

// The head is packed chunk by chunk, so that no float32 copy of a large vocabulary is ever whole.
Head read_head(ThreadPool& pool, const Model& model) {
  const TensorNames& names = model.layout.names;
  const bool tied = model.config.tied_head;
  const TensorInfo& tensor = model.file.at((tied ? names.embedding : names.head) + ".weight");
  const std::vector<float> bias =
      tied ? std::vector<float>() : read_vector(model.file, names.head + ".bias");
  const size_t d = model.config.d_model;
  Head head;
  head.vocab = model.config.vocab;
  head.chunks.resize((head.vocab + kHeadChunk - 1) / kHeadChunk);
  pool.parallel_for(head.chunks.size(), [&](size_t c, int) {
    const size_t begin = c * kHeadChunk;
    const size_t count = std::min(kHeadChunk, head.vocab - begin);
    Matrix<float> rows(count, d);
    read_f32(tensor, begin * d, rows.span());
    const std::span<const float> part =
        bias.empty() ? std::span<const float>() : std::span(bias).subspan(begin, count);
    head.chunks[c] = Linear(rows.view(), false, part, model.precision);
    if (!tied) {  // the embedding's rows are read when needed: look for NaN and Inf now
      read_f32(model.file.at(names.embedding + ".weight"), begin * d, rows.span());
    }
  });
  return head;
}

// [out, in] whatever the file's order.
Matrix<float> read_out_by_in(const Model& model, const std::string& name) {
  Matrix<float> stored = read_matrix(model.file, name + ".weight");
  if (!model.layout.in_by_out) return stored;
  Matrix<float> turned(stored.cols(), stored.rows());
  for (size_t r = 0; r < stored.rows(); ++r) {
    for (size_t c = 0; c < stored.cols(); ++c) turned(c, r) = stored(r, c);
  }
  return turned;
}

void find_places(const std::filesystem::path& directory, bool wanted, Checkpoint& checkpoint) {
  const std::filesystem::path path = directory / "places.safetensors";
  if (!std::filesystem::exists(path)) return;
  if (!wanted) {
    fail(
        "{}: something else stands in its MLPs' places (places.safetensors), which this command "
        "does not read",
        checkpoint.path);
  }
  checkpoint.places = path;
  const nlohmann::json metadata = open_safetensors(path).metadata;
  const nlohmann::json* list = find_member(metadata, "without_mlp");
  if (list == nullptr || !list->is_string()) {
    fail("{}: expected \"without_mlp\" in its metadata, found none", path.string());
  }
  const nlohmann::json layers = parse_json(list->get<std::string>(), path.string());
  for (const nlohmann::json& layer : layers) {
    if (!layer.is_number_unsigned() || layer >= checkpoint.architecture.config.layers) {
      fail("{}: \"without_mlp\": {} is no layer of {}", path.string(), layer.dump(),
           checkpoint.path);
    }
    checkpoint.without_mlp.push_back(layer.get<size_t>());
  }
}

}  // namespace

Checkpoint read_checkpoint(const std::string& model, bool with_places) {
  const ModelFiles files = find_model(model);
  Checkpoint checkpoint;
  checkpoint.path = model;
  checkpoint.file = open_checkpoint(files);
  if (!files.gguf.empty()) {
    checkpoint.architecture = parse_gguf_config(checkpoint.file.metadata, files.gguf.string());
  } else {
    const std::string path = (files.directory / "config.json").string();
    checkpoint.architecture = parse_config(parse_json(read_file(path), path), path);
    find_places(files.directory, with_places, checkpoint);
  }
  check_tensors(checkpoint);
  return checkpoint;
}

void check_window(const Checkpoint& checkpoint, size_t max_window) {
  const size_t positions = checkpoint.architecture.config.max_positions;
  if (max_window > positions) {
    fail("{}: windows of {} tokens, but the model was made for {} positions", checkpoint.path,
         max_window, positions);
  }
}

Model load_model(ThreadPool& pool, Checkpoint checkpoint, Precision precision, size_t max_window) {
  check_window(checkpoint, max_window);
  Model model;
  model.config = std::move(checkpoint.architecture.config);
  model.layout = std::move(checkpoint.architecture.layout);
  model.file = std::move(checkpoint.file);
  model.path = std::move(checkpoint.path);
  model.parameters = checkpoint.parameters;
  model.precision = precision;
  model.max_window = max_window;
  const Config& config = model.config;
  const TensorNames& names = model.layout.names;
  if (config.learned_positions) {
    model.positions = read_matrix(model.file, names.positions + ".weight");
  }
  if (config.rope.dims != 0) {
    Rope rope = config.rope;
    const std::vector<float> factors = read_vector(model.file, model.layout.rope_factors);
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!(factors[i] > 0)) {
        fail("{}: tensor {}: element {} should be positive, found {}", model.path,
             model.layout.rope_factors, i, factors[i]);
      }
      rope.frequencies[i] /= factors[i];
    }
    model.rope = make_rope_table(rope, max_window);
  }
  model.layers.resize(config.layers);
  pool.parallel_for(config.layers, [&](size_t l, int) { model.layers[l] = read_layer(model, l); });
  model.final_norm = read_norm(model, names.final_norm);
  model.head = read_head(pool, model);
  return model;
}

MlpWeights read_mlp_weights(const Model& model, size_t layer) {
  const TensorNames& names = model.layout.names;
  MlpWeights weights;
  if (model.config.gated_mlp) {
    weights.gate = read_out_by_in(model, layer_name(names.gate, layer));
    weights.gate_bias = read_vector(model.file, layer_name(names.gate, layer) + ".bias");
  }
  weights.up = read_out_by_in(model, layer_name(names.up, layer));
  weights.up_bias = read_vector(model.file, layer_name(names.up, layer) + ".bias");
  weights.down = read_out_by_in(model, layer_name(names.down, layer));
  weights.down_bias = read_vector(model.file, layer_name(names.down, layer) + ".bias");
  return weights;
}

Mlp select_neurons(const Model& model, const MlpWeights& weights, std::span<const int32_t> neurons,
                   bool with_bias) {
  const size_t d = model.config.d_model;
  const auto rows_of = [&](const Matrix<float>& from, const std::vector<float>& from_bias) {
    Matrix<float> rows(neurons.size(), d);
    std::vector<float> bias(from_bias.empty() ? 0 : neurons.size());
    for (size_t i = 0; i < neurons.size(); ++i) {
      const auto j = static_cast<size_t>(neurons[i]);
      std::copy_n(from.row(j), d, rows.row(i));
      if (!bias.empty()) bias[i] = from_bias[j];
    }
    return Linear(rows.view(), false, bias, model.precision);
  };
  Mlp mlp;
  mlp.activation = model.config.activation;
  if (!weights.gate.empty()) mlp.gate = rows_of(weights.gate, weights.gate_bias);
  mlp.up = rows_of(weights.up, weights.up_bias);
  Matrix<float> down(d, neurons.size());
  for (size_t r = 0; r < d; ++r) {
    for (size_t i = 0; i < neurons.size(); ++i) {
      down(r, i) = weights.down(r, static_cast<size_t>(neurons[i]));
    }
  }
  mlp.down =
      Linear(down.view(), false,
             with_bias ? std::span<const float>(weights.down_bias) : std::span<const float>(),
             model.precision);
  return mlp;
}

}  // namespace halflin
