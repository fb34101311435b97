// The file is safetensors with three entries of metadata: "allocation", the JSON of what is no
// matrix; "schema"; and "digest", the sha256 over all the rest. Tensors:
//   layers.<l>.options.<i>.<part>.weight, .bias   parts: affine, low_rank_in, low_rank_out,
//                                                 neurons.gate, neurons.up, neurons.down
//   layers.<l>.options.<i>.neurons.kept           U8 [d_mlp], 1 for each neuron that is kept
//   layers.<l>.options.<i>.constant               [d]
//   layers.<l>.options.<i>.gate.weight, .hidden, .hidden_bias, .bias_and_threshold [2]
#include "halflin/mlp/allocation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "halflin/base/error.h"
#include "halflin/io/checked.h"
#include "halflin/io/json.h"
#include "halflin/io/printable.h"
#include "halflin/io/sha256.h"

namespace halflin {

using nlohmann::json;

namespace {

std::string option_name(size_t layer, size_t option) {
  return fmt::format("layers.{}.options.{}.", layer, option);
}

// Every byte that means something: names, formats, shapes and contents of the tensors in order of
// name, and the JSON.
class Digest {
 public:
  void add(std::string_view text) {
    const uint64_t size = text.size();
    sha_.update(std::as_bytes(std::span(&size, 1)));
    sha_.update(std::as_bytes(std::span(text)));
  }
  void add(const std::string& name, DType dtype, std::span<const size_t> shape,
           std::span<const std::byte> bytes) {
    add(name);
    add(dtype_name(dtype));
    add(shape_text(shape));
    add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::string hex() { return sha_.hex(); }

 private:
  Sha256 sha_;
};

// ---- Writing

// Tensors to write, and the memory of those that are converted.
struct Writer {
  bool bf16 = false;
  std::vector<TensorToWrite> tensors{};
  std::deque<std::vector<std::byte>> owned{};

  std::span<const std::byte> own(std::span<const std::byte> bytes) {
    owned.emplace_back(bytes.begin(), bytes.end());
    return owned.back();
  }
  void vector(const std::string& name, std::span<const float> values) {
    if (values.empty()) return;
    tensors.push_back({name, DType::kF32, {values.size()}, own(std::as_bytes(values))});
  }
  void matrix(const std::string& name, const Matrix<float>& m) {
    if (m.empty()) return;
    if (!bf16) {
      tensors.push_back({name, DType::kF32, {m.rows(), m.cols()}, std::as_bytes(m.span())});
      return;
    }
    std::vector<halflin::bf16> rounded(m.size());
    std::transform(m.span().begin(), m.span().end(), rounded.begin(), to_bf16);
    tensors.push_back(
        {name, DType::kBF16, {m.rows(), m.cols()}, own(std::as_bytes(std::span(rounded)))});
  }
  void gate(const std::string& name, const Gate& gate) {
    vector(name + "weight", gate.weight);
    if (!gate.hidden_bias.empty()) {
      const std::vector<size_t> shape{gate.hidden_bias.size(), gate.inputs()};
      tensors.push_back({name + "hidden", DType::kF32, shape,
                         std::as_bytes(std::span<const float>(gate.hidden))});
      vector(name + "hidden_bias", gate.hidden_bias);
    }
    vector(name + "bias_and_threshold", std::vector<float>{gate.bias, gate.threshold});
  }
  void path(const std::string& name, const PlainPath& path, size_t d_mlp) {
    each_linear(path, [&](const char* part, const PlainLinear& linear) {
      matrix(name + part + ".weight", linear.weight);
      vector(name + part + ".bias", linear.bias);
    });
    vector(name + "constant", path.constant);
    if (path.neurons.kept.empty()) return;
    std::vector<uint8_t> mask(d_mlp);
    for (const int32_t j : path.neurons.kept) mask[static_cast<size_t>(j)] = 1;
    tensors.push_back(
        {name + "neurons.kept", DType::kU8, {d_mlp}, own(std::as_bytes(std::span(mask)))});
  }
};

json contents_json(const Allocation& allocation) {
  const AllocationModel& model = allocation.model;
  json contents;
  contents["model"] = {{"name", model.name},          {"sha256", model.sha256},
                       {"family", model.family},      {"layers", model.layers},
                       {"d_model", model.d_model},    {"d_mlp", model.d_mlp},
                       {"gated_mlp", model.gated_mlp}};
  contents["metadata"] = allocation.metadata;
  contents["layers"] = json::array();
  for (const auto& layer : allocation.layers) {
    json options = json::array();
    for (const PlainOption& option : layer) {
      json entry = {{"kind", option.path.kind}};
      if (option.gate) {
        entry["gate"] = {{"name", option.gate->name}, {"params", option.gate->params}};
      }
      options.push_back(std::move(entry));
    }
    contents["layers"].push_back(std::move(options));
  }
  return contents;
}

// ---- Reading

// What is left of the file's tensors: each is taken once, and in the end none may be left.
struct Reader {
  const TensorFile& file;
  std::set<std::string> left{};

  const TensorInfo* take(const std::string& name) {
    const TensorInfo* tensor = file.find(name);
    if (tensor != nullptr) left.erase(name);
    return tensor;
  }
  static void expect(const TensorInfo& tensor, size_t rank) {
    if (tensor.shape.size() != rank || tensor.dtype == DType::kU8) {
      fail("{}: tensor {}: expected {} of numbers, found {} {}", tensor.file,
           in_quotes(tensor.name), rank == 1 ? "a list" : "a matrix", dtype_name(tensor.dtype),
           shape_text(tensor.shape));
    }
  }
  std::vector<float> vector(const std::string& name) {
    const TensorInfo* tensor = take(name);
    if (tensor == nullptr) return {};
    expect(*tensor, 1);
    std::vector<float> values(tensor->elements());
    read_f32(*tensor, 0, values);
    return values;
  }
  Matrix<float> matrix(const std::string& name) {
    const TensorInfo* tensor = take(name);
    if (tensor == nullptr) return {};
    expect(*tensor, 2);
    Matrix<float> m(tensor->shape[0], tensor->shape[1]);
    read_f32(*tensor, 0, m.span());
    return m;
  }
  Gate gate(const std::string& name, const json& entry) {
    Gate gate;
    gate.name = entry.at("name").get<std::string>();
    gate.params = entry.at("params").get<size_t>();
    gate.weight = vector(name + "weight");
    const Matrix<float> hidden = matrix(name + "hidden");
    gate.hidden.assign(hidden.span().begin(), hidden.span().end());
    gate.hidden_bias = vector(name + "hidden_bias");
    const std::vector<float> numbers = vector(name + "bias_and_threshold");
    if (numbers.size() != 2) {
      fail("{}: tensor {}: expected 2 numbers, found {}", file.path,
           in_quotes(name + "bias_and_threshold"), numbers.size());
    }
    gate.bias = numbers[0];
    gate.threshold = numbers[1];
    if (hidden.rows() != gate.hidden_bias.size()) {
      fail("{}: {}: expected as many hidden biases as units, found {} and {}", file.path,
           in_quotes(name + "hidden"), gate.hidden_bias.size(), hidden.rows());
    }
    return gate;
  }
  PlainPath path(const std::string& name, const json& entry) {
    PlainPath path;
    path.kind = entry.at("kind").get<std::string>();
    each_linear(path, [&](const char* part, PlainLinear& linear) {
      linear.weight = matrix(name + part + ".weight");
      linear.bias = vector(name + part + ".bias");
    });
    path.constant = vector(name + "constant");
    if (const TensorInfo* mask = take(name + "neurons.kept")) {
      if (mask->shape.size() != 1 || mask->dtype != DType::kU8) {
        fail("{}: tensor {}: expected a list of U8, found {} {}", file.path, in_quotes(mask->name),
             dtype_name(mask->dtype), shape_text(mask->shape));
      }
      for (size_t j = 0; j < mask->bytes.size(); ++j) {
        if (mask->bytes[j] != std::byte{0}) path.neurons.kept.push_back(static_cast<int32_t>(j));
      }
    }
    return path;
  }
};

const std::string& metadata_text(const TensorFile& file, const char* key) {
  const json* entry = find_member(file.metadata, key);
  if (entry == nullptr || !entry->is_string()) {
    fail("{}: expected an allocation as halflin writes it, found no metadata \"{}\"", file.path,
         key);
  }
  return entry->get_ref<const std::string&>();
}

void check_schema(const TensorFile& file) {
  const std::string& schema = metadata_text(file, "schema");
  if (schema != std::to_string(kAllocationSchema)) {
    fail("{}: an allocation of schema {}: this halflin ({}) reads schema {}", file.path,
         in_quotes(schema), HALFLIN_VERSION, kAllocationSchema);
  }
}

AllocationModel read_model(const json& entry) {
  AllocationModel model;
  model.name = entry.at("name").get<std::string>();
  model.sha256 = entry.at("sha256").get<std::string>();
  model.family = entry.at("family").get<std::string>();
  model.layers = entry.at("layers").get<size_t>();
  model.d_model = entry.at("d_model").get<size_t>();
  model.d_mlp = entry.at("d_mlp").get<size_t>();
  model.gated_mlp = entry.at("gated_mlp").get<bool>();
  return model;
}

}  // namespace

PlainPath copy_path(const PlainPath& path) {
  const auto linear = [](const PlainLinear& from) {
    PlainLinear to{Matrix<float>(from.weight.rows(), from.weight.cols()), from.bias};
    std::copy_n(from.weight.data(), from.weight.size(), to.weight.data());
    return to;
  };
  return {.kind = path.kind,
          .affine = linear(path.affine),
          .low_rank_in = linear(path.low_rank_in),
          .low_rank_out = linear(path.low_rank_out),
          .neurons = {path.neurons.kept, linear(path.neurons.gate), linear(path.neurons.up),
                      linear(path.neurons.down)},
          .constant = path.constant};
}

void save_allocation(const std::filesystem::path& path, const Allocation& allocation, bool bf16) {
  check_allocation(allocation, path.string());
  Writer writer{.bf16 = bf16};
  for (size_t l = 0; l < allocation.layers.size(); ++l) {
    for (size_t i = 0; i < allocation.layers[l].size(); ++i) {
      const PlainOption& option = allocation.layers[l][i];
      writer.path(option_name(l, i), option.path, allocation.model.d_mlp);
      if (option.gate) writer.gate(option_name(l, i) + "gate.", *option.gate);
    }
  }
  // Sorted, as the digest reads them back.
  std::sort(writer.tensors.begin(), writer.tensors.end(),
            [](const TensorToWrite& a, const TensorToWrite& b) { return a.name < b.name; });
  std::string contents;
  try {
    contents = contents_json(allocation).dump();
  } catch (const json::exception&) {
    fail("{}: expected names and metadata in UTF-8", path.string());
  }
  Digest digest;
  digest.add(contents);
  for (const TensorToWrite& t : writer.tensors) digest.add(t.name, t.dtype, t.shape, t.bytes);
  write_safetensors(path, writer.tensors,
                    {{"schema", std::to_string(kAllocationSchema)},
                     {"allocation", contents},
                     {"digest", digest.hex()}});
}

void check_allocation_digest(const TensorFile& file) {
  Digest digest;
  digest.add(metadata_text(file, "allocation"));
  for (const auto& [name, t] : file.tensors) digest.add(name, t.dtype, t.shape, t.bytes);
  const std::string& written = metadata_text(file, "digest");
  if (const std::string found = digest.hex(); found != written) {
    fail("{}: edited or damaged: expected contents with sha256 {}, found {}", file.path,
         in_quotes(written), found);
  }
}

Allocation read_allocation(const TensorFile& file) {
  check_schema(file);
  const std::string place = fmt::format("{}: metadata", file.path);
  Allocation allocation;
  try {
    json contents = parse_json(metadata_text(file, "allocation"), place);
    allocation.model = read_model(contents.at("model"));
    allocation.metadata = std::move(contents.at("metadata"));
    Reader reader{.file = file};
    for (const auto& [name, tensor] : file.tensors) reader.left.insert(name);
    const json& layers = contents.at("layers");
    for (size_t l = 0; l < layers.size(); ++l) {
      std::vector<PlainOption>& options = allocation.layers.emplace_back();
      for (size_t i = 0; i < layers.at(l).size(); ++i) {
        const json& entry = layers.at(l).at(i);
        const std::string name = option_name(l, i);
        PlainOption option{reader.path(name, entry), {}};
        if (entry.contains("gate")) option.gate = reader.gate(name + "gate.", entry.at("gate"));
        options.push_back(std::move(option));
      }
    }
    if (!reader.left.empty() || !file.unread.empty()) {
      fail("{}: tensor {} has no place in an allocation", file.path,
           in_quotes(reader.left.empty() ? file.unread.begin()->first : *reader.left.begin()));
    }
  } catch (const json::exception& error) {
    fail("{}: no allocation as halflin writes it: {}", place, error.what());
  }
  check_allocation(allocation, file.path);
  return allocation;
}

Allocation load_allocation(const std::filesystem::path& path) {
  const TensorFile file = open_safetensors(path);
  check_schema(file);
  check_allocation_digest(file);
  return read_allocation(file);
}

}  // namespace halflin
