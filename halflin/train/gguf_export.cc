#include "halflin/train/gguf_export.h"

#include <cmath>
#include <cstring>

#include "halflin/base/error.h"
#include "halflin/io/gguf_writer.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/hf_config.h"

namespace halflin {

namespace {

using nlohmann::json;

// llama.cpp's names for what most of a file's tensors are.
constexpr uint32_t kAllF32 = 0;
constexpr uint32_t kMostlyBF16 = 32;

uint32_t count(size_t n) { return static_cast<uint32_t>(n); }

GgufMetadata gpt2_metadata(const Config& config) {
  return {{"gpt2.context_length", count(config.max_positions)},
          {"gpt2.embedding_length", count(config.d_model)},
          {"gpt2.feed_forward_length", count(config.d_mlp)},
          {"gpt2.block_count", count(config.layers)},
          {"gpt2.attention.head_count", count(config.attention.heads)},
          {"gpt2.attention.layer_norm_epsilon", config.norm_epsilon}};
}

GgufMetadata neox_metadata(const Config& config, const json& hf) {
  return {{"gptneox.context_length", count(config.max_positions)},
          {"gptneox.embedding_length", count(config.d_model)},
          {"gptneox.feed_forward_length", count(config.d_mlp)},
          {"gptneox.block_count", count(config.layers)},
          {"gptneox.attention.head_count", count(config.attention.heads)},
          {"gptneox.attention.layer_norm_epsilon", config.norm_epsilon},
          {"gptneox.rope.dimension_count", count(config.rope.dims)},
          {"gptneox.rope.freq_base", hf.at("rotary_emb_base").get<float>()},
          {"gptneox.use_parallel_residual", config.parallel_residual}};
}

GgufMetadata llama_metadata(const Config& config, const json& hf) {
  const AttentionShape& a = config.attention;
  GgufMetadata out = {{"llama.context_length", count(config.max_positions)},
                      {"llama.embedding_length", count(config.d_model)},
                      {"llama.feed_forward_length", count(config.d_mlp)},
                      {"llama.block_count", count(config.layers)},
                      {"llama.vocab_size", count(config.vocab)},
                      {"llama.attention.head_count", count(a.heads)},
                      {"llama.attention.head_count_kv", count(a.kv_heads)},
                      {"llama.attention.key_length", count(a.head_dim)},
                      {"llama.attention.value_length", count(a.head_dim)},
                      {"llama.attention.layer_norm_rms_epsilon", config.norm_epsilon},
                      {"llama.rope.dimension_count", count(config.rope.dims)},
                      {"llama.rope.freq_base", hf.at("rope_theta").get<float>()}};
  if (hf.contains("rope_scaling")) {
    out.emplace_back("llama.rope.scaling.type", std::string("linear"));
    out.emplace_back("llama.rope.scaling.factor", hf.at("rope_scaling").at("factor").get<float>());
  }
  return out;
}

GgufMetadata made_anew(const TrainModel& model, const Checkpoint& checkpoint) {
  const Config& config = model.config;
  const std::string architecture = config.family == "gpt2"       ? "gpt2"
                                   : config.family == "gpt_neox" ? "gptneox"
                                                                 : "llama";
  const std::filesystem::path directory = find_model(checkpoint.path).directory;
  // A directory may be named with a slash at its end.
  const std::string name = (directory / ".").parent_path().filename().string();
  GgufMetadata out = {{"general.architecture", architecture}, {"general.name", name}};
  const auto append = [&](GgufMetadata more) {
    std::move(more.begin(), more.end(), std::back_inserter(out));
  };
  const json hf = hf_config(model);
  append(architecture == "gpt2"      ? gpt2_metadata(config)
         : architecture == "gptneox" ? neox_metadata(config, hf)
                                     : llama_metadata(config, hf));
  append(tokenizer_metadata(directory, config.vocab));
  return out;
}

json as_json(const GgufMetadata& metadata) {
  json out = json::object();
  for (const auto& [key, value] : metadata) {
    std::visit([&, &key = key](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

// Whether the metadata say all of the configuration: what cannot be said is refused here.
void check_read_back(const Config& want, const Config& got, const std::string& path) {
  const auto refuse = [&](const char* what) {
    fail("{}: GGUF has no way to say {} of this model's architecture", path, what);
  };
  if (got.activation != want.activation) refuse("which activation it has, but for the usual one");
  if (got.scale_by_layer != want.scale_by_layer || got.attention.scale != want.attention.scale) {
    refuse("how attention is scaled");
  }
  if (got.parallel_residual != want.parallel_residual) refuse("how its residual stream goes");
  if (want.attention.window != 0 && want.attention.window < want.max_positions) {
    refuse("that attention is in a window");  // a key exists, llama.cpp does not read it for llama
  }
  if (got.rope.dims != want.rope.dims || got.rope.scale != want.rope.scale) refuse("its rotation");
  for (size_t i = 0; i < want.rope.frequencies.size(); ++i) {
    const float error = std::abs(got.rope.frequencies[i] - want.rope.frequencies[i]);
    if (!(error <= 1e-5f * want.rope.frequencies[i])) refuse("its rotary frequencies");
  }
}

// What llama.cpp wants to be there, whether the model has it or not.
void add_what_readers_ask_for(TrainModel& model) {
  if (model.config.family != "gpt_neox") return;
  for (TrainLayer& layer : model.layers) {
    for (TrainAffine* affine : {&layer.qkv, &layer.attention_out}) {
      if (!affine->bias.exists()) affine->bias.value = Matrix<float>(1, affine->out());
    }
  }
}

// Matrices in `dtype`, rounded in place; vectors stay as they are.
TensorToWrite to_write(StoredTensor& tensor, DType dtype) {
  const std::span<float> values = tensor.values.span();
  const std::span<const std::byte> bytes = std::as_bytes(values);
  if (tensor.shape.size() == 1 || dtype == DType::kF32) {
    return {tensor.name, DType::kF32, tensor.shape, bytes};
  }
  auto* rounded = reinterpret_cast<unsigned char*>(values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const bf16 v = to_bf16(values[i]);
    std::memcpy(rounded + 2 * i, &v, sizeof(v));
  }
  return {tensor.name, DType::kBF16, tensor.shape, bytes.first(values.size() * 2)};
}

}  // namespace

void save_gguf(TrainModel& model, const Checkpoint& checkpoint, const std::filesystem::path& path,
               DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) fail("models are saved as F32 or BF16");
  const bool from_gguf = !find_model(checkpoint.path).gguf.empty();
  GgufMetadata metadata;
  if (from_gguf) {
    metadata = typed_metadata(checkpoint.file.metadata, checkpoint.path);
    std::erase_if(metadata, [](const auto& entry) {
      return entry.first == "general.alignment" || entry.first == "general.file_type" ||
             entry.first == "general.quantization_version";
    });
  } else {
    metadata = made_anew(model, checkpoint);
  }
  metadata.emplace_back("general.file_type", dtype == DType::kF32 ? kAllF32 : kMostlyBF16);

  const Architecture written = parse_gguf_config(as_json(metadata), path.string());
  if (!from_gguf) check_read_back(model.config, written.config, path.string());
  add_what_readers_ask_for(model);
  std::vector<StoredTensor> stored = stored_tensors(model, written.layout, /*gradients=*/false);
  const TensorNames& names = written.layout.names;
  if (model.config.tied_head && model.config.family == "gpt_neox") {
    StoredTensor head;  // llama.cpp asks for it
    head.name = names.head + ".weight";
    head.shape = stored.front().shape;
    head.values = Matrix<float>(head.shape[0], head.shape[1]);
    std::copy(stored.front().values.span().begin(), stored.front().values.span().end(),
              head.values.span().begin());
    stored.push_back(std::move(head));
  }
  std::vector<TensorToWrite> tensors;
  tensors.reserve(stored.size());
  for (StoredTensor& tensor : stored) tensors.push_back(to_write(tensor, dtype));
  const TensorInfo* factors = written.layout.rope_factors.empty()
                                  ? nullptr
                                  : checkpoint.file.find(written.layout.rope_factors);
  if (from_gguf && factors != nullptr) {
    tensors.push_back({factors->name, factors->dtype, factors->shape, factors->bytes});
  }
  write_gguf(path, metadata, tensors);
}

}  // namespace halflin
