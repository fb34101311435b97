#include "halflin/train/places.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/io/json.h"

namespace halflin {

namespace {

using nlohmann::json;

constexpr int kSchema = 1;

constexpr std::pair<Route, const char*> kRoutes[] = {{Route::kFull, "full"},
                                                     {Route::kCheap, "cheap"},
                                                     {Route::kSoft, "soft"},
                                                     {Route::kHard, "hard"}};

constexpr std::pair<Activation, const char*> kActivations[] = {{Activation::kGeluErf, "gelu"},
                                                               {Activation::kGeluTanh, "gelu_new"},
                                                               {Activation::kSilu, "silu"},
                                                               {Activation::kRelu, "relu"},
                                                               {Activation::kNone, "none"}};

template <class T, size_t n>
const char* name_of(const std::pair<T, const char*> (&table)[n], T value) {
  for (const auto& [v, name] : table) {
    if (v == value) return name;
  }
  fail("a value without a name");
}

template <class T, size_t n>
T value_of(const std::pair<T, const char*> (&table)[n], const json& found,
           const std::string& where) {
  for (const auto& [v, name] : table) {
    if (found == name) return v;
  }
  fail("{}: expected one of its names, found {}", where, found.dump());
}

// Parameters of a place that the checkpoint does not hold.
std::vector<Parameter*> own_parameters(MlpPlace& place) {
  std::optional<TrainMlp> full;
  full.swap(place.full);
  std::vector<Parameter*> all = parameters(place);
  full.swap(place.full);
  return all;
}

double affine_flops(const TrainAffine& affine) {
  return 2.0 * static_cast<double>(affine.weight.value.size());
}

double mlp_flops(const TrainMlp& mlp) {
  return affine_flops(mlp.gate) + affine_flops(mlp.up) + affine_flops(mlp.down);
}

// Reads one tensor, if it is there, into a parameter of that shape; 0 stands for any size.
class Reader {
 public:
  Reader(const TensorFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  void read(Parameter& parameter, const std::string& name, size_t rows, size_t cols) {
    const TensorInfo* tensor = file_.find(prefix_ + name);
    if (tensor == nullptr) return;
    ++count;
    if (tensor->shape.size() != 2 || (rows != 0 && tensor->shape[0] != rows) ||
        (cols != 0 && tensor->shape[1] != cols)) {
      fail("{}: tensor {}: expected [{}, {}], found [{}]", file_.path, tensor->name, rows, cols,
           fmt::join(tensor->shape, ", "));
    }
    parameter.value = Matrix<float>(tensor->shape[0], tensor->shape[1]);
    read_f32(*tensor, 0, parameter.value.span());
  }
  void read(TrainAffine& affine, const std::string& name, size_t out, size_t in) {
    read(affine.weight, name + ".weight", out, in);
    read(affine.bias, name + ".bias", 1, affine.exists() ? affine.out() : 0);
  }

  size_t count = 0;

 private:
  const TensorFile& file_;
  std::string prefix_;
};

void demand(bool complete, const TensorFile& file, size_t layer, const char* what) {
  if (!complete) fail("{}: layer {}: expected {}, found missing", file.path, layer, what);
}

size_t read_place(const TensorFile& file, const json& about, size_t layer, size_t d,
                  MlpPlace& place) {
  const std::string where = fmt::format("{}: layer {}", file.path, layer);
  place.route = value_of(kRoutes, about.at("route"), where + ": route");
  Reader reader(file, fmt::format("layers.{}.mlp.", layer));
  TrainCheap& cheap = place.cheap;
  reader.read(cheap.affine, "cheap.affine", d, d);
  reader.read(cheap.low_rank_in, "cheap.low_rank_in", 0, d);
  reader.read(cheap.low_rank_out, "cheap.low_rank_out", d, cheap.low_rank_in.out());
  demand(cheap.low_rank_in.exists() == cheap.low_rank_out.exists(), file, layer,
         "both factors of the low-rank path");
  TrainMlp narrow;
  reader.read(narrow.up, "cheap.narrow.up", 0, d);
  if (narrow.up.exists()) {
    reader.read(narrow.gate, "cheap.narrow.gate", narrow.up.out(), d);
    reader.read(narrow.down, "cheap.narrow.down", d, narrow.up.out());
    demand(narrow.down.exists(), file, layer, "the narrow MLP's down projection");
    narrow.activation = value_of(kActivations, about.at("activation"), where + ": activation");
    cheap.narrow = std::move(narrow);
  }
  reader.read(cheap.constant, "cheap.constant", 1, d);
  reader.read(place.gate.hidden, "gate.hidden", 0, d);
  reader.read(place.gate.out, "gate.out", 1,
              place.gate.hidden.exists() ? place.gate.hidden.out() : d);
  place.gate.activation =
      value_of(kActivations, about.at("gate_activation"), where + ": gate_activation");
  const bool gated = place.route == Route::kSoft || place.route == Route::kHard;
  demand(place.route == Route::kCheap || place.full, file, layer, "the full MLP");
  demand(!gated || place.gate.exists(), file, layer, "a gate");
  return reader.count;
}

}  // namespace

bool has_places(const TrainModel& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const TrainLayer& layer) {
    return layer.mlp.route != Route::kFull || !layer.mlp.full;
  });
}

void save_places(const TrainModel& model, const std::filesystem::path& path, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) fail("places are saved as F32 or BF16");
  json places = json::array();
  json without = json::array();
  std::vector<TensorToWrite> tensors;
  std::vector<Matrix<bf16>> rounded;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    // Nothing is changed through it.
    MlpPlace& place = const_cast<MlpPlace&>(model.layers[l].mlp);
    if (!place.full) without.push_back(l);
    places.push_back(
        {{"route", name_of(kRoutes, place.route)},
         {"activation", name_of(kActivations, place.cheap.narrow ? place.cheap.narrow->activation
                                                                 : model.config.activation)},
         {"gate_activation", name_of(kActivations, place.gate.activation)}});
    for (const Parameter* p : own_parameters(place)) {
      std::span<const std::byte> bytes = std::as_bytes(p->value.span());
      if (dtype == DType::kBF16) {
        Matrix<bf16> copy(p->value.rows(), p->value.cols());
        std::transform(p->value.span().begin(), p->value.span().end(), copy.span().begin(),
                       to_bf16);
        rounded.push_back(std::move(copy));
        bytes = std::as_bytes(rounded.back().span());
      }
      tensors.push_back({p->name, dtype, {p->value.rows(), p->value.cols()}, bytes});
    }
  }
  write_safetensors(path, tensors,
                    {{"schema", std::to_string(kSchema)},
                     {"places", places.dump()},
                     {"without_mlp", without.dump()}});
}

void load_places(const Checkpoint& checkpoint, TrainModel& model) {
  const TensorFile file = open_safetensors(checkpoint.places);
  const auto entry = [&](const char* key) {
    const json* text = find_member(file.metadata, key);
    if (text == nullptr || !text->is_string()) {
      fail("{}: expected \"{}\" in its metadata, found none", file.path, key);
    }
    return parse_json(text->get<std::string>(), fmt::format("{}: \"{}\"", file.path, key));
  };
  if (const json schema = entry("schema"); schema != kSchema) {
    fail("{}: expected schema {}, found {}", file.path, kSchema, schema.dump());
  }
  const json places = entry("places");
  if (places.size() != model.layers.size()) {
    fail("{}: expected {} places, found {}", file.path, model.layers.size(), places.size());
  }
  size_t read = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    for (const char* key : {"route", "activation", "gate_activation"}) {
      if (find_member(places[l], key) == nullptr) {
        fail("{}: layer {}: expected \"{}\", found none", file.path, l, key);
      }
    }
    read += read_place(file, places[l], l, model.config.d_model, model.layers[l].mlp);
  }
  if (read != file.tensors.size()) {
    fail("{}: {} of {} tensors have no place in the model", file.path, file.tensors.size() - read,
         file.tensors.size());
  }
  name_parameters(model);
}

double place_flops(const MlpPlace& place, double full_share) {
  const double full = place.full ? mlp_flops(*place.full) : 0.0;
  if (place.route == Route::kFull) return full;
  const TrainCheap& c = place.cheap;
  const double cheap = affine_flops(c.affine) + affine_flops(c.low_rank_in) +
                       affine_flops(c.low_rank_out) + (c.narrow ? mlp_flops(*c.narrow) : 0.0);
  if (place.route == Route::kCheap) return cheap;
  const double gate = affine_flops(place.gate.hidden) + affine_flops(place.gate.out);
  return gate + full_share * full + (1 - full_share) * cheap;
}

FlopCount model_flops(const TrainModel& model, size_t window, std::span<const double> full_shares) {
  FlopCount flops = flops_per_token(model.config, window);
  flops.mlp = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    flops.mlp += place_flops(model.layers[l].mlp, full_shares.empty() ? 1.0 : full_shares[l]);
  }
  return flops;
}

}  // namespace halflin
