// halflin export: a model with cheaper MLPs in a format that other programs load.
#include <filesystem>
#include <memory>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/measure/paths.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/gguf_export.h"
#include "halflin/train/places.h"
#include "halflin/train/stock_mlp.h"

namespace halflin::cli {

namespace {

struct Options {
  Common common;
  std::string allocation;
  std::string format;
  std::string out;
  std::string dtype = "f32";
};

void run(const Options& options) {
  const Checkpoint checkpoint = read_checkpoint(options.common.model, /*with_places=*/true);
  const Config& config = checkpoint.architecture.config;
  ThreadPool pool(options.common.threads);
  TrainModel model = load_train_model(pool, checkpoint, 1);
  if (!checkpoint.places.empty()) load_places(checkpoint, model);
  if (!options.allocation.empty()) {
    apply_allocation(model,
                     load_allocation_for(options.allocation, options.common.model, checkpoint),
                     options.allocation);
  }
  nlohmann::json layers = nlohmann::json::array();
  for (size_t l = 0; l < config.layers; ++l) {
    const MlpPlace& place = model.layers[l].mlp;
    if (place.route == Route::kFull) continue;
    layers.push_back(
        {{"layer", l}, {"units", stock_units(place, config.gated_mlp)}, {"of", config.d_mlp}});
  }
  make_stock(model);

  ensure_writable_directory(options.out);
  const DType dtype = options.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const std::filesystem::path directory = options.out;
  const bool gguf = options.format == "gguf";
  if (gguf) {
    save_gguf(model, checkpoint, directory / "model.gguf", dtype);
  } else {
    // Only llama's MLPs may or may not have biases.
    const bool biases = config.family == "llama" && model.layers[0].mlp.full->up.bias.exists();
    save_train_model(model, checkpoint, directory, dtype,
                     biases ? nlohmann::json{{"mlp_bias", true}} : nlohmann::json::object());
    if (!find_model(checkpoint.path).gguf.empty() && !options.common.quiet) {
      fmt::print(stderr,
                 "halflin: warning: the tokenizer of a GGUF file is not written: copy "
                 "tokenizer.json into {}\n",
                 options.out);
    }
  }
  const std::string written = gguf ? (directory / "model.gguf").string() : options.out;
  if (options.common.json) {
    fmt::print("{}\n", nlohmann::json{{"written", written},
                                      {"format", options.format},
                                      {"dtype", options.dtype},
                                      {"layers", layers}}
                           .dump(2));
    return;
  }
  for (const nlohmann::json& layer : layers) {
    fmt::print("layer {:>3}: {} of {} hidden units are used\n", layer["layer"].get<size_t>(),
               layer["units"].get<size_t>(), config.d_mlp);
  }
  fmt::print("written: {}\n", written);
}

}  // namespace

void add_export(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "export", "Write a model with cheaper MLPs in a format that other programs load");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin export openai-community/gpt2 --allocation static.safetensors --as gguf "
             "--out exported");
  command->add_option("--allocation", options->allocation,
                      "an allocation without gates; without it the model is written as it is");
  command->add_option("--as", options->format, "hf or gguf")
      ->required()
      ->check(CLI::IsMember({"hf", "gguf"}));
  command->add_option("--out", options->out, "directory to write to")->required();
  command->add_option("--dtype", options->dtype, "of matrices")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
