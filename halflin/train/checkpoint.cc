#include "halflin/train/checkpoint.h"

#include <algorithm>
#include <cstring>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/io/tokenizer_export.h"
#include "halflin/train/hf_config.h"

namespace halflin {

namespace {

namespace fs = std::filesystem;

// How one tensor of a checkpoint lies in a parameter.
struct Piece {
  std::string name;            // "....weight" or "....bias"
  bool is_vector = false;      // stored as [n], held as [1, n]
  bool turned = false;         // stored [in, out]
  size_t begin = 0;            // its first row (of a vector: element) in the parameter
  std::vector<size_t> source;  // row begin + r of the parameter is row source[r] of the tensor
};

struct Entry {
  Parameter* parameter;
  Piece piece;
};

std::vector<size_t> in_order(size_t n) {
  std::vector<size_t> source(n);
  for (size_t i = 0; i < n; ++i) source[i] = i;
  return source;
}

// GPT-NeoX stores q, k, v head by head.
std::vector<size_t> per_head(const AttentionShape& a) {
  std::vector<size_t> source;
  for (size_t part = 0; part < 3; ++part) {
    for (size_t h = 0; h < a.heads; ++h) {
      for (size_t i = 0; i < a.head_dim; ++i) source.push_back((h * 3 + part) * a.head_dim + i);
    }
  }
  return source;
}

// llama.cpp stores the dimensions that turn together side by side; here they are half a head apart.
std::vector<size_t> deinterleaved(size_t heads, size_t head_dim, size_t rotary) {
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

// Every tensor of a checkpoint with its parameter, in the model's order.
class Table {
 public:
  Table(TrainModel& model, const TensorLayout& layout) : layout_(layout) {
    const Config& config = model.config;
    const TensorNames& names = layout.names;
    matrix(model.embedding, names.embedding);
    if (model.positions.exists()) matrix(model.positions, names.positions);
    for (size_t l = 0; l < config.layers; ++l) {
      TrainLayer& layer = model.layers[l];
      norm(layer.attention_norm, layer_name(names.attention_norm, l));
      qkv(layer.qkv, config, l);
      affine(layer.attention_out, layer_name(names.attention_out, l));
      norm(layer.mlp_norm, layer_name(names.mlp_norm, l));
      if (!layer.mlp.full) continue;
      if (config.gated_mlp) affine(layer.mlp.full->gate, layer_name(names.gate, l));
      affine(layer.mlp.full->up, layer_name(names.up, l));
      affine(layer.mlp.full->down, layer_name(names.down, l));
    }
    norm(model.final_norm, names.final_norm);
    if (!config.tied_head) {
      matrix(model.head.weight, names.head);
      vector(model.head.bias, names.head + ".bias");
    }
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void matrix(Parameter& p, const std::string& name) {
    entries_.push_back({&p, {name + ".weight", false, false, 0, in_order(p.value.rows())}});
  }

  void vector(Parameter& p, const std::string& name) {
    if (p.exists()) entries_.push_back({&p, {name, true, false, 0, in_order(p.value.size())}});
  }

  void norm(TrainNorm& norm, const std::string& name) {
    vector(norm.weight, name + ".weight");
    vector(norm.bias, name + ".bias");
  }

  void affine(TrainAffine& affine, const std::string& name) {
    rows(affine, name, 0, in_order(affine.out()));
  }

  void rows(TrainAffine& affine, const std::string& name, size_t begin,
            const std::vector<size_t>& source) {
    entries_.push_back(
        {&affine.weight, {name + ".weight", false, layout_.in_by_out, begin, source}});
    if (affine.bias.exists()) {
      entries_.push_back({&affine.bias, {name + ".bias", true, false, begin, source}});
    }
  }

  void qkv(TrainAffine& affine, const Config& config, size_t l) {
    const TensorNames& names = layout_.names;
    const AttentionShape& a = config.attention;
    if (!names.qkv.empty()) {
      rows(affine, layer_name(names.qkv, l), 0,
           layout_.qkv_order == QkvOrder::kPerHead ? per_head(a) : in_order(affine.out()));
      return;
    }
    const size_t rotary = layout_.interleaved_rope ? config.rope.dims : 0;
    const size_t q = a.heads * a.head_dim;
    const size_t kv = a.kv_heads * a.head_dim;
    rows(affine, layer_name(names.q, l), 0, deinterleaved(a.heads, a.head_dim, rotary));
    rows(affine, layer_name(names.k, l), q, deinterleaved(a.kv_heads, a.head_dim, rotary));
    rows(affine, layer_name(names.v, l), q + kv, in_order(kv));
  }

  const TensorLayout& layout_;
  std::vector<Entry> entries_;
};

// Element (r, c) of a piece, r a row of the piece, in the parameter's matrix and in the tensor's.
template <class F>
void for_elements(const Piece& piece, size_t cols, const F& f) {
  for (size_t r = 0; r < piece.source.size(); ++r) {
    if (piece.is_vector) {
      f(0, piece.begin + r, 0, piece.source[r]);
      continue;
    }
    for (size_t c = 0; c < cols; ++c) {
      if (piece.turned) {
        f(piece.begin + r, c, c, piece.source[r]);
      } else {
        f(piece.begin + r, c, piece.source[r], c);
      }
    }
  }
}

void read_piece(const TensorFile& file, const Entry& entry) {
  const Piece& piece = entry.piece;
  Matrix<float>& to = entry.parameter->value;
  const TensorInfo* tensor = file.find(piece.name);
  if (tensor == nullptr) {
    if (piece.is_vector) return;  // q, k and v need not all have biases: those stay zero
    file.at(piece.name);
  }
  const size_t cols = tensor->shape.size() > 1 ? tensor->shape[1] : tensor->shape[0];
  Matrix<float> stored(tensor->elements() / cols, cols);
  read_f32(*tensor, 0, stored.span());
  for_elements(piece, to.cols(), [&](size_t r, size_t c, size_t stored_r, size_t stored_c) {
    to(r, c) = stored(stored_r, stored_c);
  });
}

bool any_bias(const TensorFile& file, size_t layers, std::initializer_list<std::string> patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    for (size_t l = 0; l < layers && !pattern.empty(); ++l) {
      if (file.find(layer_name(pattern, l) + ".bias") != nullptr) return true;
    }
    return false;
  });
}

}  // namespace

TrainModel load_train_model(ThreadPool& pool, const Checkpoint& checkpoint, size_t max_window) {
  const TensorLayout& layout = checkpoint.architecture.layout;
  const TensorNames& names = layout.names;
  const TensorFile& file = checkpoint.file;
  Config config = checkpoint.architecture.config;
  if (!layout.rope_factors.empty()) {
    if (const TensorInfo* factors = file.find(layout.rope_factors); factors != nullptr) {
      std::vector<float> values(factors->elements());
      read_f32(*factors, 0, values);
      for (size_t i = 0; i < values.size(); ++i) config.rope.frequencies[i] /= values[i];
    }
  }
  TrainModel model = make_train_model(
      config, max_window, any_bias(file, config.layers, {names.qkv, names.q, names.k, names.v}),
      any_bias(file, config.layers, {names.up}));
  // Where the attention's output has a bias of its own accord.
  for (size_t l = 0; l < config.layers; ++l) {
    TrainAffine& out = model.layers[l].attention_out;
    const bool has = file.find(layer_name(names.attention_out, l) + ".bias") != nullptr;
    out.bias.value = has ? Matrix<float>(1, config.d_model) : Matrix<float>();
  }
  if (!config.tied_head && file.find(names.head + ".bias") != nullptr) {
    model.head.bias.value = Matrix<float>(1, config.vocab);
  }
  for (const size_t l : checkpoint.without_mlp) model.layers[l].mlp.full.reset();
  name_parameters(model);
  const Table table(model, layout);
  pool.parallel_for(table.entries().size(),
                    [&](size_t i, int) { read_piece(file, table.entries()[i]); });
  return model;
}

std::vector<StoredTensor> stored_tensors(const TrainModel& model, const TensorLayout& layout,
                                         bool gradients) {
  // The table points into the model; nothing is changed through it here.
  const Table table(const_cast<TrainModel&>(model), layout);
  std::vector<StoredTensor> stored;
  for (const Entry& entry : table.entries()) {
    const Parameter& p = *entry.parameter;
    const Piece& piece = entry.piece;
    const Matrix<float>& from = gradients ? p.gradient : p.value;
    if (from.empty()) continue;
    const size_t n = piece.source.size();
    StoredTensor tensor;
    tensor.name = piece.name;
    if (piece.is_vector) {
      tensor.shape = {n};
      tensor.values = Matrix<float>(1, n);
    } else {
      tensor.shape = {n, from.cols()};
      if (piece.turned) std::swap(tensor.shape[0], tensor.shape[1]);
      tensor.values = Matrix<float>(tensor.shape[0], tensor.shape[1]);
    }
    for_elements(piece, from.cols(), [&](size_t r, size_t c, size_t stored_r, size_t stored_c) {
      tensor.values(stored_r, stored_c) = from(r, c);
    });
    stored.push_back(std::move(tensor));
  }
  return stored;
}

namespace {

void check_dtype(DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) fail("models are saved as F32 or BF16");
}

void write_config(const fs::path& directory, nlohmann::json config, DType dtype) {
  const char* key = config.contains("torch_dtype") ? "torch_dtype" : "dtype";
  config[key] = dtype == DType::kF32 ? "float32" : "bfloat16";
  write_file_atomically(directory / "config.json", config.dump(2) + "\n");
}

void write_weights(const TrainModel& model, const TensorLayout& layout, const fs::path& directory,
                   DType dtype) {
  std::vector<StoredTensor> stored = stored_tensors(model, layout, /*gradients=*/false);
  std::vector<TensorToWrite> tensors;
  for (StoredTensor& tensor : stored) {
    const std::span<float> values = tensor.values.span();
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (dtype == DType::kBF16) {  // in place: a value is read before its room is taken
      auto* rounded = reinterpret_cast<unsigned char*>(values.data());
      for (size_t i = 0; i < values.size(); ++i) {
        const bf16 v = to_bf16(values[i]);
        std::memcpy(rounded + 2 * i, &v, sizeof(v));
      }
      bytes = bytes.first(values.size() * 2);
    }
    tensors.push_back({tensor.name, dtype, tensor.shape, bytes});
  }
  write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"}) {
    if (!fs::exists(from / name)) continue;
    if (fs::exists(to / name) && fs::equivalent(from / name, to / name)) continue;
    write_file_atomically(to / name, read_file(from / name));
  }
}

void write_gguf_tokenizer(const Checkpoint& checkpoint, const fs::path& to) {
  if (find_member(checkpoint.file.metadata, "tokenizer.ggml.model") == nullptr) return;
  const TokenizerFiles files = export_tokenizer(checkpoint.file.metadata, checkpoint.path);
  write_file_atomically(to / "tokenizer.json", files.tokenizer.dump() + "\n");
  write_file_atomically(to / "tokenizer_config.json", files.tokenizer_config.dump(2) + "\n");
}

}  // namespace

void save_train_model(const TrainModel& model, const Checkpoint& checkpoint,
                      const fs::path& directory, DType dtype, const nlohmann::json& changes) {
  const ModelFiles files = find_model(checkpoint.path);
  if (files.directory.empty()) {
    ensure_writable_directory(directory);
    write_gguf_tokenizer(checkpoint, directory);
    return save_new_model(model, directory, dtype);
  }
  check_dtype(dtype);
  ensure_writable_directory(directory);
  copy_tokenizer(files.directory, directory);
  const std::string path = (files.directory / "config.json").string();
  nlohmann::json config = parse_json(read_file(path), path);
  config.update(changes);
  write_config(directory, std::move(config), dtype);
  write_weights(model, checkpoint.architecture.layout, directory, dtype);
}

void save_new_model(const TrainModel& model, const fs::path& directory, DType dtype) {
  check_dtype(dtype);
  const nlohmann::json config = hf_config(model);
  TensorLayout layout = parse_config(config, (directory / "config.json").string()).layout;
  add_prefix(layout.names);
  ensure_writable_directory(directory);
  write_config(directory, config, dtype);
  write_weights(model, layout, directory, dtype);
}

}  // namespace halflin
