// halflin finetune: train a model further, on a text or towards another model's predictions.
#include <memory>

#include "cli/training.h"
#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/measure/run.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/places.h"

namespace halflin::cli {

namespace {

namespace fs = std::filesystem;

constexpr int kFinetuneSchema = 1;

struct Options {
  Common common;
  TrainingOptions training;
  std::string objective = "lm";
  std::string teacher;
  float temperature = 1;
  std::string command;
};

// The frozen model that distilling follows, with what a pass needs of it.
struct LoadedTeacher {
  Model model;
  Workspace workspace;
};

std::unique_ptr<LoadedTeacher> load_teacher(ThreadPool& pool, const Options& options,
                                            Checkpoint checkpoint, size_t vocab) {
  if (checkpoint.architecture.config.vocab != vocab) {
    fail("{}: a vocabulary of {}, the model to train has {}", checkpoint.path,
         checkpoint.architecture.config.vocab, vocab);
  }
  const TrainingOptions& training = options.training;
  auto teacher = std::make_unique<LoadedTeacher>();
  teacher->model =
      load_model(pool, std::move(checkpoint), training.train.precision, training.text.window);
  teacher->workspace = Workspace(teacher->model, training.train.batch * training.text.window);
  return teacher;
}

// Before training: kept, so that a run that goes on need not measure it again.
nlohmann::json loss_before(ThreadPool& pool, TrainModel& model, const TrainingWindows& windows,
                           const TrainingOptions& training, const std::atomic<bool>& stop) {
  const fs::path path = fs::path(training.out) / "before.json";
  if (fs::exists(path)) return parse_json(read_file(path), path.string());
  nlohmann::json before = evaluate_held_out(pool, model, windows, training, "", stop);
  write_file_atomically(path, before.dump(2) + "\n");
  return before;
}

void run(Options& options) {
  TrainingOptions& training = options.training;
  complete(training, options.common.quiet);
  const bool distills = options.objective == "distill";
  if (!distills && !options.teacher.empty()) {
    throw UsageError("--teacher needs --objective distill");
  }
  Checkpoint checkpoint = read_checkpoint(options.common.model, /*with_places=*/true);
  check_window(checkpoint, training.text.window);
  std::optional<Checkpoint> teacher_checkpoint;
  if (distills) {
    if (options.teacher.empty() && !checkpoint.places.empty()) {
      throw UsageError("--objective distill: a model with places of its own needs a --teacher");
    }
    teacher_checkpoint =
        read_checkpoint(options.teacher.empty() ? options.common.model : options.teacher);
    check_window(*teacher_checkpoint, training.text.window);
  }
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  const TrainingTexts texts = read_training_texts(training);
  nlohmann::json header =
      run_header(kFinetuneSchema, "finetune", options.command, options.common.threads,
                 options.common.model, checkpoint, texts.train);
  add_to_header(texts, training, header);
  header["settings"]["objective"] = options.objective;
  if (!checkpoint.places.empty()) {
    header["model"]["places_sha256"] = sha256_files(open_safetensors(checkpoint.places));
  }
  if (distills) {
    header["settings"]["temperature"] = options.temperature;
    header["teacher"] = {{"name", teacher_checkpoint->path},
                         {"sha256", sha256_files(teacher_checkpoint->file)}};
  }
  claim_directory(training.out, header);
  if (const auto result = finished_result(training)) {
    return print_training_result(*result, training, options.common);
  }

  ThreadPool pool(options.common.threads);
  TrainModel model = load_train_model(pool, checkpoint, training.text.window);
  if (!checkpoint.places.empty()) load_places(checkpoint, model);
  checkpoint.file = {};  // its pages need no memory from here on
  const TrainingWindows windows = cut_texts(texts, tokenizer, training, options.common.model);
  const std::atomic<bool>& stop = stop_on_signals();
  const nlohmann::json before = loss_before(pool, model, windows, training, stop);
  set_trainable(parameters(model), true);
  std::unique_ptr<LoadedTeacher> teacher;
  Objective& objective = training.train.objective;
  if (distills) {
    teacher = load_teacher(pool, options, *teacher_checkpoint, model.config.vocab);
    objective.kind = Objective::Kind::kDistill;
    objective.teacher.model = &teacher->model;
    objective.teacher.temperature = options.temperature;
    objective.teacher.workspace = &teacher->workspace;
  }
  nlohmann::json result = run_training(pool, model, windows, training, header, stop);
  if (!before.empty()) result["before"] = before;
  const DType dtype = parse_save_dtype(training.save_dtype);
  const fs::path out = training.out;
  if (has_places(model)) save_places(model, out / "places.safetensors", dtype);
  save_train_model(model, checkpoint, out, dtype);
  save_result(training, result);
  print_training_result(result, training, options.common);
}

}  // namespace

void add_finetune(CLI::App& app, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "finetune", "Train a model further, on a text or towards another model's predictions");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin finetune HuggingFaceTB/SmolLM2-135M --text train.txt --test-text test.txt "
             "--steps 200 --window 512 --batch 4 --lr 2e-5 --dtype bf16 --out tuned\n"
             "A state is kept in --out; the same command goes on from there.");
  TrainOptions& train = options->training.train;
  train.batch = 4;
  train.steps = 100;
  train.schedule.peak = 2e-5;
  add_training(*command, options->training);
  command
      ->add_option("--objective", options->objective,
                   "lm: loss of the next token; distill: KL divergence from the teacher's "
                   "predictions")
      ->capture_default_str()
      ->check(CLI::IsMember({"lm", "distill"}));
  command->add_option("--teacher", options->teacher,
                      "the model that distilling follows (default: MODEL as it is)");
  command->add_option("--temperature", options->temperature, "of both predictions in distilling")
      ->capture_default_str()
      ->check(CLI::Range(0.01f, 100.f));
  options->command = command_line;
  command->final_callback(
      [options] { with_results_of(options->training.out, [&] { run(*options); }); });
}

}  // namespace halflin::cli
