// halflin linearize: replace MLPs by linear surrogates while the rest is fine-tuned.
#include "halflin/train/linearize.h"

#include <algorithm>
#include <memory>

#include "cli/training.h"
#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/measure/run.h"
#include "halflin/report/linearize_table.h"
#include "halflin/train/linearize_result.h"

namespace halflin::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  Common common;
  TextOptions text;
  RunOptions run;
  std::string layers;
  std::string order = "center";
  std::string test_text, second_text;
  bool at_once = false, two_phase = false, no_control = false, keep_stages = false;
  std::string objective = "lm";
  float temperature = 1.f;
  // Defaults that depend on the procedure.
  std::optional<size_t> window, fit_tokens;
  std::optional<double> rate;
  size_t steps_per_layer = 50, final_steps = 200, steps = 2000;
  size_t eval_window = 512, eval_tokens = 24000, calibration_tokens = 6000;
  double ridge = 0.01;
  TrainOptions train;
  GateTraining gates;
  LinearizeStatistics statistics;
  std::string command;

  bool one_stage() const { return at_once || two_phase; }
};

void complete(const CLI::App& command, Options& options) {
  const bool at_once = options.one_stage();
  const auto refuse = [&](std::initializer_list<const char*> names, const char* why) {
    for (const char* name : names) {
      if (command.count(name) != 0) throw UsageError(fmt::format("{} {}", name, why));
    }
  };
  if (at_once) {
    refuse({"--order", "--steps-per-layer", "--final-steps", "--calibration-tokens"},
           "is for layers one after another, not --at-once or --two-phase");
  } else {
    refuse({"--steps"}, "is for --at-once and --two-phase; see --steps-per-layer");
  }
  if (!options.two_phase) {
    refuse({"--gate-steps", "--gate-lr", "--gate-units", "--gate-bias", "--gate-penalty"},
           "needs --two-phase");
  }
  if (options.objective != "distill") refuse({"--temperature"}, "needs --objective distill");
  refuse_nan("--ridge", options.ridge);
  TrainOptions& train = options.train;
  refuse_nan("--weight-decay", train.optimizer.weight_decay);
  refuse_nan("--clip", train.optimizer.clip);
  refuse_nan("--gate-penalty", options.gates.penalty);
  refuse_nan("--gate-lr", options.gates.train.schedule.peak);
  refuse_nan("--gate-bias", static_cast<double>(options.gates.bias));
  options.text.window = options.window.value_or(at_once ? 256 : 128);
  train.schedule.peak = options.rate.value_or(at_once ? 2e-5 : 5e-6);
  refuse_nan("--lr", train.schedule.peak);
  train.schedule.kind = at_once ? Schedule::Kind::kCosine : Schedule::Kind::kConstant;
  train.precision = parse_precision(options.text.dtype);
  if (options.objective == "distill") train.objective.kind = Objective::Kind::kDistill;

  TrainOptions& gates = options.gates.train;
  const Schedule schedule = gates.schedule;
  const size_t steps = gates.steps;
  gates = train;
  gates.steps = steps;
  gates.schedule = schedule;
  gates.schedule.kind = Schedule::Kind::kCosine;
  gates.schedule.steps = steps;
  gates.optimizer.weight_decay = 0;  // Adam
  options.statistics.seed = train.seed;
  options.statistics.interval.kind = parse_interval(options.run.interval);
  if (train.precision == Precision::kBF16 && !has_native_bf16() && !options.common.quiet) {
    fmt::print(stderr, "halflin: warning: this CPU has no bfloat16 arithmetic: float32 products\n");
  }
}

// ---- Texts

struct TextFiles {
  Text train;
  std::optional<Text> test, second;
};

TextFiles read_texts(const Options& options) {
  TextFiles files;
  files.train = read_text(options.text.path);
  if (!options.test_text.empty()) files.test = read_text(options.test_text);
  if (!options.second_text.empty()) files.second = read_text(options.second_text);
  const auto refuse_same = [&](const std::optional<Text>& text, const char* option) {
    if (text && text->sha256 == files.train.sha256) {
      throw UsageError(fmt::format("{} {}: the text to train on", option, text->path));
    }
  };
  refuse_same(files.test, "--test-text");
  refuse_same(files.second, "--second-text");
  return files;
}

LinearizeTexts make_texts(const TextFiles& files, const Options& options,
                          const Tokenizer& tokenizer) {
  LinearizeSizes sizes;
  sizes.fit = options.fit_tokens.value_or(options.one_stage() ? 50000 : 10000);
  sizes.calibration = options.order == "cheapest" ? options.calibration_tokens : 0;
  sizes.test = options.eval_tokens;
  sizes.eval_window = options.eval_window;
  sizes.train_window = options.text.window;
  sizes.train_windows = options.train.batch;
  const auto tokenized = [&](const std::optional<Text>& text) -> std::optional<TokenizedText> {
    if (!text) return std::nullopt;
    return TokenizedText{text->path, tokenizer.encode(text->bytes)};
  };
  return make_linearize_texts(*tokenized(files.train), tokenized(files.test),
                              tokenized(files.second),
                              bos_of(tokenizer, options.text.bos, options.common.model), sizes);
}

// ---- The run

nlohmann::json make_header(const Options& options, const std::vector<size_t>& layers,
                           const Checkpoint& checkpoint, const TextFiles& files,
                           const LinearizeTexts& texts) {
  nlohmann::json header =
      run_header(kLinearizeSchema, "linearize", options.command, options.common.threads,
                 options.common.model, checkpoint, files.train);
  if (files.test) header["test_text"] = text_header(*files.test);
  if (files.second) header["second_text"] = text_header(*files.second);
  header["splits"] = texts.description;
  const TrainOptions& train = options.train;
  nlohmann::json settings = {
      {"layers", layers},
      {"procedure", options.two_phase ? "two-phase"
                    : options.at_once ? "at-once"
                                      : "progressive"},
      {"control", !options.no_control},
      {"objective", options.objective},
      {"batch", train.batch},
      {"accumulate", train.accumulate},
      {"learning_rate", train.schedule.peak},
      {"warmup", train.schedule.warmup},
      {"weight_decay", train.optimizer.weight_decay},
      {"clip", train.optimizer.clip},
      {"ridge", options.ridge},
      {"dtype", options.text.dtype},
      {"bos", options.text.bos},
      {"native_bf16", has_native_bf16()},
      {"seed", train.seed},
      {"bootstrap", bootstrap_json(options.statistics.draws, options.statistics.interval)}};
  if (options.objective == "distill") settings["temperature"] = options.temperature;
  if (options.one_stage()) {
    settings["steps"] = options.steps;
  } else {
    settings["order"] = options.order;
    settings["steps_per_layer"] = options.steps_per_layer;
    settings["final_steps"] = options.final_steps;
  }
  if (options.two_phase) {
    const GateTraining& gates = options.gates;
    settings["gates"] = {{"steps", gates.train.steps}, {"learning_rate", gates.train.schedule.peak},
                         {"units", gates.units},       {"bias", gates.bias},
                         {"penalty", gates.penalty},   {"penalty_from", gates.penalty_from}};
  }
  header["settings"] = settings;
  return header;
}

std::vector<LinearizeStage> make_stages(const Options& options, const LinearizeRun& run,
                                        std::vector<size_t> layers) {
  if (options.one_stage()) return {{layers, options.steps}};
  if (options.order == "center") layers = from_center(layers);
  if (options.order == "descending") std::ranges::reverse(layers);
  if (options.order == "cheapest") {
    const nlohmann::json order = cheapest_order(run, layers);
    std::ranges::transform(order, layers.begin(),
                           [](const nlohmann::json& o) { return o.at("layer").get<size_t>(); });
  }
  std::vector<LinearizeStage> stages;
  stages.reserve(layers.size() + 1);
  for (const size_t layer : layers) stages.push_back({{layer}, options.steps_per_layer});
  if (options.final_steps != 0) stages.push_back({{}, options.final_steps});
  return stages;
}

void print_result(const nlohmann::json& result, const Options& options) {
  if (options.common.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print("{}\nresult: {}\n", linearize_table(result),
               (fs::path(options.run.out) / "result.json").string());
  }
}

// The original model as a teacher.
struct Original {
  Model model;
  Workspace workspace;
};

void run(const CLI::App& command, Options& options) {
  complete(command, options);
  const Checkpoint checkpoint = read_checkpoint(options.common.model);
  const std::vector<size_t> layers =
      parse_layers(options.layers, checkpoint.architecture.config.layers);
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  check_window(checkpoint, std::max(options.text.window, options.eval_window));
  const TextFiles files = read_texts(options);
  const LinearizeTexts texts = make_texts(files, options, tokenizer);
  const nlohmann::json header = make_header(options, layers, checkpoint, files, texts);
  claim_directory(options.run.out, header);
  const fs::path result_path = fs::path(options.run.out) / "result.json";
  if (fs::exists(result_path)) {  // all of it was done before
    return print_result(parse_json(read_file(result_path), result_path.string()), options);
  }

  ThreadPool pool(options.common.threads);
  std::unique_ptr<Original> teacher;
  if (options.objective == "distill") {
    teacher = std::make_unique<Original>();
    teacher->model = load_model(pool, read_checkpoint(options.common.model),
                                options.train.precision, options.text.window);
    teacher->workspace = Workspace(teacher->model, options.train.batch * options.text.window);
    Teacher& follows = options.train.objective.teacher;
    follows.model = &teacher->model;
    follows.temperature = options.temperature;
    follows.workspace = &teacher->workspace;
    options.gates.train.objective = options.train.objective;
  }
  LinearizeRun context{.pool = pool,
                       .original = checkpoint,
                       .texts = texts,
                       .out = options.run.out,
                       .identity = identity_of(header),
                       .stages = {},
                       .ridge = options.ridge,
                       .train = options.train,
                       .keep_stages = options.keep_stages,
                       .stop = stop_on_signals(),
                       .quiet = options.common.quiet};
  context.stages = make_stages(options, context, layers);

  LinearizeFigures figures;
  figures.original = measure_original(context);
  const bool prints = !options.common.quiet && !options.common.json;
  if (!options.no_control) {
    figures.control =
        run_stages(context, {false, context.out / "control" / "stages", context.out / "control"},
                   [](const nlohmann::json&) {});
  }
  if (prints) fmt::print(stderr, "{}", linearize_table_header());
  run_stages(context, {true, context.out / "stages", context.out},
             [&](const nlohmann::json& stage) {
               figures.stages.push_back(stage);
               if (!prints) return;
               fmt::print(stderr, "{}",
                          linearize_table_line(stage_result(
                              context, figures, figures.stages.size() - 1, options.statistics)));
             });
  if (options.two_phase) {
    figures.soft = train_gates(context, options.gates, Route::kSoft);
    figures.hard = train_gates(context, options.gates, Route::kHard);
  }
  const nlohmann::json result =
      linearize_result(header, context, figures, options.gates.units, options.statistics);
  write_file_atomically(result_path, result.dump(2) + "\n");
  print_result(result, options);
}

void add_options(CLI::App& command, Options& options) {
  const auto count = CLI::Range(size_t{0}, size_t{1} << 30);
  const auto positive = CLI::Range(size_t{1}, size_t{1} << 30);
  TrainOptions& train = options.train;
  command.add_option("--layers", options.layers, "to make linear, e.g. 10:15 (15 not included)")
      ->required();
  command.add_option("--order", options.order, "in which the layers become linear, one by one")
      ->capture_default_str()
      ->check(CLI::IsMember({"center", "ascending", "descending", "cheapest"}));
  command.add_flag("--at-once", options.at_once, "all layers at once, then --steps on a cosine");
  command.add_flag("--two-phase", options.two_phase,
                   "--at-once, then gates that learn which tokens take the full MLP");
  command.add_flag("--no-control", options.no_control,
                   "without the same training of the model as it is");
  command.add_option("--text", options.text.path, "UTF-8 text to train on")->required();
  command.add_option("--test-text", options.test_text,
                     "text to evaluate on (default: the end of --text)");
  command.add_option("--second-text", options.second_text,
                     "text of another kind to evaluate on as well");
  command
      .add_option("--objective", options.objective,
                  "lm: the next token; distill: the original model's predictions")
      ->capture_default_str()
      ->check(CLI::IsMember({"lm", "distill"}));
  command.add_option("--temperature", options.temperature, "of --objective distill")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e3));
  command.add_option("--steps-per-layer", options.steps_per_layer, "after each layer")
      ->capture_default_str()
      ->check(count);
  command.add_option("--final-steps", options.final_steps, "in the end")
      ->capture_default_str()
      ->check(count);
  command.add_option("--steps", options.steps, "of --at-once and --two-phase's first phase")
      ->capture_default_str()
      ->check(count);
  command
      .add_option("--window", options.window,
                  "tokens of a training window (default: 128; 256 at once)")
      ->check(CLI::Range(size_t{2}, size_t{1} << 20));
  command.add_option("--batch", train.batch, "windows of one pass")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--accumulate", train.accumulate, "passes whose gradients make one step")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--lr", options.rate, "learning rate (default: 5e-6; 2e-5 at once)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--warmup", train.schedule.warmup, "steps in which it rises, in each stage")
      ->capture_default_str()
      ->check(count);
  command
      .add_option("--weight-decay", train.optimizer.weight_decay,
                  "decoupled; never of biases, norms and constants")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--clip", train.optimizer.clip, "largest norm of the gradient; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--gate-steps", options.gates.train.steps, "of each kind of gate")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--gate-lr", options.gates.train.schedule.peak, "gates' learning rate")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--gate-units", options.gates.units, "of a gate's hidden layer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--gate-bias", options.gates.bias,
                  "of a gate's output at the start; below 0 most tokens are linear")
      ->capture_default_str();
  command
      .add_option("--gate-penalty", options.gates.penalty,
                  "weight of the gates' mean in the loss, after a tenth of the steps")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--eval-window", options.eval_window,
                  "tokens of a window of surrogate fits and evaluations")
      ->capture_default_str()
      ->check(CLI::Range(size_t{2}, size_t{1} << 20));
  command
      .add_option("--fit-tokens", options.fit_tokens,
                  "tokens that fit the surrogates (default: 10000; 50000 at once)")
      ->check(positive);
  command
      .add_option("--calibration-tokens", options.calibration_tokens,
                  "tokens that --order cheapest measures on")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--eval-tokens", options.eval_tokens, "tokens of each text to evaluate on")
      ->capture_default_str()
      ->check(positive);
  command.add_flag("--bos", options.text.bos,
                   "begin each window with the BOS that the tokenizer's configuration adds");
  command
      .add_option("--dtype", options.text.dtype,
                  "precision of matrix products; weights stay float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  command.add_flag("--recompute", train.recompute,
                   "compute activations again in the backward pass instead of keeping them");
  command
      .add_option("--save-every", train.save_every,
                  "steps of a stage between saved states, from which the same command goes on")
      ->capture_default_str()
      ->check(count);
  command.add_flag("--keep-stages", options.keep_stages, "keep the model of every stage");
  add_run(command, options.run, "the windows' order, the gates' start and the bootstrap",
          train.seed, options.statistics.draws, options.ridge);
}

}  // namespace

void add_linearize(CLI::App& app, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "linearize", "Replace MLPs by linear surrogates while the rest is fine-tuned");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin linearize openai-community/gpt2-medium --layers 10:15 --text wiki.train.raw "
             "--test-text wiki.test.raw --second-text books.txt --dtype bf16 --out linear\n"
             "Finished stages are kept in --out; the same command goes on where it stopped.");
  options->gates.train.steps = 3000;
  options->gates.train.schedule.peak = 1e-3;
  options->train.batch = 1;
  add_options(*command, *options);
  options->command = command_line;
  command->final_callback(
      [command, options] { with_results_of(options->run.out, [&] { run(*command, *options); }); });
}

}  // namespace halflin::cli
