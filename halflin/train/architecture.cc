#include "halflin/train/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/measure/run.h"
#include "halflin/model/families/families.h"

namespace halflin {

namespace {

using nlohmann::json;
using Kind = PlaceSpec::Kind;

void refuse_unknown(const json& object, const std::set<std::string>& known,
                    const std::string& where) {
  if (!object.is_object()) fail("{}: expected an object, found {}", where, object.dump());
  for (const auto& [key, value] : object.items()) {
    if (!known.contains(key)) {
      fail("{}: \"{}\" is no key here ({} are)", where, key, fmt::join(known, ", "));
    }
  }
}

const json& member(const json& object, const char* key) {
  static const json empty = json::object();
  return object.contains(key) ? object.at(key) : empty;
}

Kind cheap_kind(const ConfigReader& reader, const std::string& name) {
  if (name == "linear") return Kind::kLinear;
  if (name == "low_rank") return Kind::kLowRank;
  if (name == "hybrid") return Kind::kHybrid;
  if (name == "skip") return Kind::kSkip;
  if (name == "narrow") return Kind::kFull;
  fail("{}: kind \"{}\" is none of linear, low_rank, hybrid, narrow, skip", reader.file(), name);
}

PlaceSpec parse_place(const json& object, size_t d_mlp, const std::string& where) {
  if (!object.is_object()) fail("{}: expected an object, found {}", where, object.dump());
  const ConfigReader reader(object, where);
  PlaceSpec place;
  const std::string kind = reader.text("kind");
  std::set<std::string> known = {"kind"};
  if (kind == "full") {
    known.insert("width");
    place.width = reader.count_or("width", d_mlp);
  } else if (kind == "gated") {
    known.insert({"width", "cheap", "gate_hidden", "gate_bias", "route"});
    place.kind = Kind::kGated;
    place.width = reader.count_or("width", d_mlp);
    if (place.width != d_mlp) {
      fail("{}: a gated layer's full MLP has the model's {} neurons, not {}", where, d_mlp,
           place.width);
    }
    const std::string cheap_where = where + ".cheap";
    json cheap = object.contains("cheap") ? object.at("cheap") : json{{"kind", "linear"}};
    const PlaceSpec inner = parse_place(cheap, d_mlp, cheap_where);
    if (inner.kind == Kind::kGated) fail("{}: a gate's cheap way cannot be gated", cheap_where);
    place.cheap = inner.kind;
    place.cheap_width = inner.width;
    place.cheap_rank = inner.rank;
    place.gate_hidden = reader.has("gate_hidden") ? reader.count("gate_hidden") : 0;
    place.gate_bias = reader.number_or("gate_bias", 1.f);
    const std::string route = reader.text_or("route", "hard");
    if (route != "hard" && route != "soft") {
      fail("{}: \"route\" should be \"hard\" or \"soft\", found \"{}\"", where, route);
    }
    place.route = route == "hard" ? Route::kHard : Route::kSoft;
  } else {
    place.kind = cheap_kind(reader, kind);
    if (place.kind == Kind::kFull || place.kind == Kind::kHybrid) {
      known.insert("width");
      place.width = reader.count("width");
    }
    if (place.kind == Kind::kLowRank) {
      known.insert("rank");
      place.rank = reader.count("rank");
    }
  }
  refuse_unknown(object, known, where);
  return place;
}

std::vector<PlaceSpec> parse_places(const json& mlp, size_t layers, size_t d_mlp,
                                    const std::string& file) {
  refuse_unknown(mlp, {"default", "layers"}, file + ": mlp");
  PlaceSpec standard;
  standard.width = d_mlp;
  if (mlp.contains("default")) {
    standard = parse_place(mlp.at("default"), d_mlp, file + ": mlp.default");
  }
  std::vector<PlaceSpec> places(layers, standard);
  std::vector<std::string> given(layers);
  const json& overrides = member(mlp, "layers");
  if (!overrides.is_object()) {
    fail(
        "{}: mlp.layers: expected an object such as {{\"2:4\": {{\"kind\": \"linear\"}}}}, found "
        "{}",
        file, overrides.dump());
  }
  for (const auto& [range, object] : overrides.items()) {
    const std::string where = fmt::format("{}: mlp.layers.\"{}\"", file, range);
    const PlaceSpec place = parse_place(object, d_mlp, where);
    for (const size_t l : parse_layers(range, layers)) {
      if (!given[l].empty()) {
        fail("{}: layer {} is in \"{}\" and in \"{}\"", file, l, given[l], range);
      }
      given[l] = range;
      places[l] = place;
    }
  }
  return places;
}

// Keys that all families share, and each family's own.
const std::set<std::string> kCommonKeys = {
    "family", "layers",    "d_model",    "heads",        "d_mlp", "positions", "tokenizer",
    "vocab",  "tied_head", "activation", "norm_epsilon", "init",  "mlp",       "gate_penalty"};

json gpt2_config(const ConfigReader& reader, size_t d_mlp) {
  refuse_unknown(reader.object(), kCommonKeys, reader.file());
  return {{"model_type", "gpt2"},
          {"n_layer", reader.count("layers")},
          {"n_embd", reader.count("d_model")},
          {"n_head", reader.count("heads")},
          {"n_inner", d_mlp},
          {"n_positions", reader.count("positions")},
          {"layer_norm_epsilon", reader.number_or("norm_epsilon", 1e-5f)},
          {"activation_function", reader.text_or("activation", "gelu_new")},
          {"tie_word_embeddings", reader.flag_or("tied_head", true)}};
}

json neox_config(const ConfigReader& reader, size_t d_mlp) {
  std::set<std::string> known = kCommonKeys;
  known.insert({"rotary_share", "rope_theta", "parallel_residual"});
  refuse_unknown(reader.object(), known, reader.file());
  return {{"model_type", "gpt_neox"},
          {"num_hidden_layers", reader.count("layers")},
          {"hidden_size", reader.count("d_model")},
          {"num_attention_heads", reader.count("heads")},
          {"intermediate_size", d_mlp},
          {"max_position_embeddings", reader.count("positions")},
          {"layer_norm_eps", reader.number_or("norm_epsilon", 1e-5f)},
          {"hidden_act", reader.text_or("activation", "gelu")},
          {"rotary_pct", reader.number_or("rotary_share", 0.25f)},
          {"rotary_emb_base", reader.number_or("rope_theta", 10000.f)},
          {"use_parallel_residual", reader.flag_or("parallel_residual", true)},
          {"tie_word_embeddings", reader.flag_or("tied_head", false)}};
}

json llama_config(const ConfigReader& reader, size_t d_mlp) {
  std::set<std::string> known = kCommonKeys;
  known.insert({"kv_heads", "rope_theta"});
  refuse_unknown(reader.object(), known, reader.file());
  const size_t heads = reader.count("heads");
  const size_t kv_heads = reader.count_or("kv_heads", heads);
  if (heads % kv_heads != 0) {
    fail("{}: {} heads do not share {} key-value heads evenly", reader.file(), heads, kv_heads);
  }
  return {{"model_type", "llama"},
          {"num_hidden_layers", reader.count("layers")},
          {"hidden_size", reader.count("d_model")},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"intermediate_size", d_mlp},
          {"max_position_embeddings", reader.count("positions")},
          {"rms_norm_eps", reader.number_or("norm_epsilon", 1e-5f)},
          {"hidden_act", reader.text_or("activation", "silu")},
          {"rope_theta", reader.number_or("rope_theta", 10000.f)},
          {"tie_word_embeddings", reader.flag_or("tied_head", false)}};
}

// A family's usual start.
void set_init(const ConfigReader& reader, const std::string& family, size_t layers, size_t d,
              ArchitectureSpec& spec) {
  const double depth = static_cast<double>(layers);
  const double width = static_cast<double>(d);
  spec.residual_std = spec.std;
  if (family == "gpt2") spec.residual_std = spec.std / std::sqrt(2 * depth);
  if (family == "gpt_neox") {  // GPT-NeoX's small_init and wang_init
    spec.std = std::sqrt(2 / (5 * width));
    spec.residual_std = 2 / (depth * std::sqrt(width));
  }
  const std::string where = reader.file() + ": init";
  const json& object = member(reader.object(), "init");
  refuse_unknown(object, {"std", "residual_std", "seed"}, where);
  const ConfigReader init(object, where);
  if (init.has("std")) {
    const double scale = static_cast<double>(init.number("std")) / spec.std;
    spec.std *= scale;
    spec.residual_std *= scale;
  }
  spec.residual_std =
      static_cast<double>(init.number_or("residual_std", static_cast<float>(spec.residual_std)));
  if (!(spec.std > 0) || !(spec.residual_std > 0)) {
    fail("{}: standard deviations should be positive", where);
  }
  if (init.has("seed")) {
    const json& seed = object.at("seed");
    if (!seed.is_number_integer() || seed < 0) fail("{}: seed {} is no seed", where, seed.dump());
    spec.seed = seed.get<uint64_t>();
  }
}

void set_penalty(const ConfigReader& reader, ArchitectureSpec& spec) {
  const std::string where = reader.file() + ": gate_penalty";
  const json& object = member(reader.object(), "gate_penalty");
  refuse_unknown(object, {"mean_weight", "target", "target_weight", "from_step"}, where);
  const ConfigReader penalty(object, where);
  spec.penalty.mean_weight = penalty.number_or("mean_weight", 0.f);
  spec.penalty.target = penalty.number_or("target", 0.f);
  spec.penalty.target_weight = penalty.number_or("target_weight", 0.f);
  spec.penalty_from = penalty.count_or("from_step", 1);
  const bool gated = std::any_of(spec.places.begin(), spec.places.end(),
                                 [](const PlaceSpec& p) { return p.kind == Kind::kGated; });
  if (!gated && !object.empty()) fail("{}: no layer is gated", where);
}

// Draws the start of a model's weights; each tensor from a stream of its own.
struct Initializer {
  const ArchitectureSpec& spec;
  const Config& config;

  void draw(Parameter& p, double std) const {
    Random random(spec.seed, "init " + p.name);
    for (float& v : p.value.span()) v = static_cast<float>(std * random.normal());
  }
  void draw(TrainMlp& mlp) const {
    draw(mlp.gate.weight, spec.std);
    draw(mlp.up.weight, spec.std);
    draw(mlp.down.weight, spec.residual_std);
  }
};

TrainAffine make_affine(size_t out, size_t in, bool bias = true) {
  TrainAffine affine;
  affine.weight.value = Matrix<float>(out, in);
  if (bias) affine.bias.value = Matrix<float>(1, out);
  return affine;
}

// An MLP like the model's own, of another width.
TrainMlp make_mlp(const Config& config, size_t width, bool bias) {
  TrainMlp mlp;
  mlp.activation = config.activation;
  if (config.gated_mlp) mlp.gate = make_affine(width, config.d_model, bias);
  mlp.up = make_affine(width, config.d_model, bias);
  mlp.down = make_affine(config.d_model, width, bias);
  return mlp;
}

TrainCheap make_cheap(const Config& config, Kind kind, size_t width, size_t rank, bool bias) {
  TrainCheap cheap;
  const size_t d = config.d_model;
  if (kind == Kind::kLinear || kind == Kind::kHybrid) cheap.affine = make_affine(d, d);
  if (kind == Kind::kFull || kind == Kind::kHybrid) cheap.narrow = make_mlp(config, width, bias);
  if (kind == Kind::kLowRank) {
    cheap.low_rank_in = make_affine(rank, d, false);
    cheap.low_rank_out = make_affine(d, rank);
  }
  return cheap;
}

void make_place(const Config& config, const PlaceSpec& spec, MlpPlace& place) {
  const bool bias = place.full->up.bias.exists();
  if (spec.kind == Kind::kGated) {
    place.route = spec.route;
    place.cheap = make_cheap(config, spec.cheap, spec.cheap_width, spec.cheap_rank, bias);
    if (spec.gate_hidden != 0) place.gate.hidden = make_affine(spec.gate_hidden, config.d_model);
    place.gate.out = make_affine(1, spec.gate_hidden != 0 ? spec.gate_hidden : config.d_model);
    place.gate.out.bias.value(0, 0) = spec.gate_bias;
    return;
  }
  if (spec.kind == Kind::kFull && spec.width == config.d_mlp) return;
  place.full.reset();
  place.route = Route::kCheap;
  place.cheap = make_cheap(config, spec.kind, spec.width, spec.rank, bias);
}

}  // namespace

ArchitectureSpec parse_architecture(const json& architecture, const std::string& file) {
  if (!architecture.is_object())
    fail("{}: expected an object, found {}", file, architecture.dump());
  const ConfigReader reader(architecture, file);
  ArchitectureSpec spec;
  const std::string family = reader.text("family");
  const size_t d = reader.count("d_model");
  const size_t heads = reader.count("heads");
  const size_t layers = reader.count("layers");
  if (d % heads != 0) fail("{}: d_model {} does not divide into {} heads", file, d, heads);
  if (family == "llama" && !reader.has("d_mlp")) fail("{}: \"d_mlp\" is missing", file);
  const size_t d_mlp = reader.count_or("d_mlp", 4 * d);
  if (family == "gpt2") {
    spec.config = gpt2_config(reader, d_mlp);
  } else if (family == "gpt_neox") {
    spec.config = neox_config(reader, d_mlp);
  } else if (family == "llama") {
    spec.config = llama_config(reader, d_mlp);
  } else {
    fail("{}: family \"{}\" is none of gpt2, gpt_neox, llama", file, family);
  }
  spec.vocab = reader.has("vocab") ? reader.count("vocab") : 0;
  spec.tokenizer = std::filesystem::path(file).parent_path() / reader.text("tokenizer");
  spec.places = parse_places(member(architecture, "mlp"), layers, d_mlp, file);
  set_init(reader, family, layers, d, spec);
  set_penalty(reader, spec);
  json with_vocab = spec.config;  // what the family itself refuses, now rather than later
  with_vocab["vocab_size"] = 1;
  parse_config(with_vocab, file);
  return spec;
}

TrainModel make_new_model(const ArchitectureSpec& spec, size_t vocab, size_t max_window) {
  if (spec.vocab != 0 && spec.vocab < vocab) {
    fail("{}: the tokenizer has {} ids, \"vocab\" is only {}", spec.tokenizer.string(), vocab,
         spec.vocab);
  }
  json config = spec.config;
  config["vocab_size"] = spec.vocab != 0 ? spec.vocab : vocab;
  const Architecture architecture = parse_config(config, "the architecture");
  const TensorLayout& layout = architecture.layout;
  TrainModel model =
      make_train_model(architecture.config, max_window, layout.attention_bias.value_or(false),
                       layout.mlp_bias.value_or(false));
  for (size_t l = 0; l < model.layers.size(); ++l) {
    make_place(model.config, spec.places[l], model.layers[l].mlp);
  }
  name_parameters(model);

  const Initializer init{spec, model.config};
  init.draw(model.embedding, spec.std);
  init.draw(model.positions, spec.std);
  init.draw(model.head.weight, spec.std);
  std::vector<TrainNorm*> norms{&model.final_norm};
  for (TrainLayer& layer : model.layers) {
    norms.insert(norms.end(), {&layer.attention_norm, &layer.mlp_norm});
    init.draw(layer.qkv.weight, spec.std);
    init.draw(layer.attention_out.weight, spec.residual_std);
    MlpPlace& place = layer.mlp;
    if (place.full) init.draw(*place.full);
    init.draw(place.cheap.affine.weight, spec.residual_std);
    init.draw(place.cheap.low_rank_in.weight, spec.std);
    init.draw(place.cheap.low_rank_out.weight, spec.residual_std);
    if (place.cheap.narrow) init.draw(*place.cheap.narrow);
    init.draw(place.gate.hidden.weight, spec.std);  // the gate's output starts at its bias alone
  }
  for (TrainNorm* norm : norms) std::ranges::fill(norm->weight.value.span(), 1.f);
  set_trainable(parameters(model), true);
  return model;
}

}  // namespace halflin
