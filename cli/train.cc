// halflin train: a model from scratch, of an architecture that a file describes.
#include <memory>

#include "cli/training.h"
#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/io/sha256.h"
#include "halflin/measure/run.h"
#include "halflin/train/architecture.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/places.h"

namespace halflin::cli {

namespace {

namespace fs = std::filesystem;

constexpr int kTrainSchema = 1;

struct Options {
  Common common;
  TrainingOptions training;
  std::string config;
  std::string command;
};

void copy_if_there(const fs::path& from, const fs::path& to) {
  if (fs::exists(from)) write_file_atomically(to, read_file(from));
}

void save_model(const TrainModel& model, const fs::path& tokenizer,
                const TrainingOptions& training) {
  const fs::path out = training.out;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    copy_if_there(tokenizer / name, out / name);
  }
  const DType dtype = parse_save_dtype(training.save_dtype);
  if (has_places(model)) save_places(model, out / "places.safetensors", dtype);
  save_new_model(model, out, dtype);
}

void run(Options& options) {
  TrainingOptions& training = options.training;
  complete(training, options.common.quiet);
  const nlohmann::json architecture = parse_json(read_file(options.config), options.config);
  const ArchitectureSpec spec = parse_architecture(architecture, options.config);
  const Tokenizer tokenizer = Tokenizer::from_directory(spec.tokenizer);
  const std::string tokenizer_json = read_file(spec.tokenizer / "tokenizer.json");
  const TrainingTexts texts = read_training_texts(training);
  TrainModel model = make_new_model(spec, tokenizer.size(), training.text.window);
  nlohmann::json header = {
      {"schema", kTrainSchema},
      {"kind", "train"},
      {"halflin", HALFLIN_VERSION},
      {"command", options.command},
      {"threads", options.common.threads},
      {"architecture", architecture},
      {"tokenizer_sha256", sha256_hex(std::as_bytes(std::span(tokenizer_json)))}};
  add_to_header(texts, training, header);
  claim_directory(training.out, header);
  if (const auto result = finished_result(training)) {
    return print_training_result(*result, training, options.common);
  }
  ThreadPool pool(options.common.threads);
  training.train.objective.penalty = spec.penalty;
  training.train.penalty_from = spec.penalty_from;
  const TrainingWindows windows = cut_texts(texts, tokenizer, training, spec.tokenizer.string());
  const nlohmann::json result =
      run_training(pool, model, windows, training, header, stop_on_signals());
  save_model(model, spec.tokenizer, training);
  save_result(training, result);
  print_training_result(result, training, options.common);
}

}  // namespace

void add_train(CLI::App& app, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "train", "A model from scratch, each layer's MLP full, narrow, linear, hybrid or gated");
  const auto options = std::make_shared<Options>();
  add_common_without_model(
      *command, options->common,
      "halflin train --config models/gpt2-books.json --text train.txt --test-text test.txt "
      "--tokens 20000000 --window 256 --batch 32 --lr 2e-3 --warmup 200 --dtype bf16 --out gpt2\n"
      "A state is kept in --out; the same command goes on from there.");
  command->add_option("--config", options->config, "the architecture, see docs/formats.md")
      ->required();
  TrainOptions& train = options->training.train;
  train.optimizer.beta2 = 0.95;
  train.optimizer.weight_decay = 0.1;
  add_training(*command, options->training);
  options->command = command_line;
  command->final_callback(
      [options] { with_results_of(options->training.out, [&] { run(*options); }); });
}

}  // namespace halflin::cli
