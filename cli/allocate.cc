// halflin allocate: give up what a budget of perplexity allows, token by token, for all layers.
#include "halflin/measure/allocate.h"

#include <unistd.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/text.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/run.h"
#include "halflin/report/allocation_table.h"

namespace halflin::cli {

namespace {

constexpr size_t kTimeRepetitions = 9;
// Of the budget: what healing begins with. It takes about half of the loss away.
constexpr double kHealFrom = 2;

struct Options {
  Common common;
  TextOptions text;
  SplitSizes sizes{.fit_tokens = 20000,
                   .train_tokens = 16000,
                   .calibration_tokens = 16000,
                   .eval_tokens = 24000};
  AllocateOptions allocate;
  std::string budget;
  std::string paths = "linear,folded,pruned";
  std::string kept = "0.0625";
  std::string pruned = "0.3,0.45,0.6,0.75,0.9";
  std::string ranks;
  std::string fit = "original";
  size_t harm_tokens = 8192;
  std::string multiples = "0.25,0.5,1,2,4";
  std::string save = "flops";
  std::string interval = "bca";
  std::string out;
  bool heal = false;
  std::string heal_text;
  std::string heal_weights;
  size_t heal_tokens = 200000;
  std::optional<double> heal_from;
  HealOptions healing;
  std::string command;
};

std::vector<double> parse_between(const std::string& text, const char* option, double most) {
  std::vector<double> values = parse_numbers(text, option);
  for (const double value : values) {
    if (value > 0 && value < most) continue;
    throw UsageError(
        fmt::format("{} \"{}\": expected numbers above 0 and below {:g}", option, text, most));
  }
  return values;
}

// "1%", "0.5 %" or "1".
double parse_budget(const std::string& text) {
  std::string number = text;
  if (!number.empty() && number.back() == '%') number.pop_back();
  while (!number.empty() && number.back() == ' ') number.pop_back();
  try {
    size_t used = 0;
    const double value = std::stod(number, &used);
    if (used == number.size() && value > 0 && value < 1e6) return value;
  } catch (const std::logic_error&) {
  }
  throw UsageError(fmt::format(
      "--budget \"{}\": expected a percentage of perplexity above 0, such as 1%", text));
}

void parse_paths(Options& options) {
  MenuOptions& menu = options.allocate.menu;
  menu.linear = false;
  for (const std::string& name : split(options.paths, ',')) {
    if (name == "linear") {
      menu.linear = true;
    } else if (name == "folded") {
      menu.folded = parse_between(options.kept, "--kept", 1);
    } else if (name == "pruned") {
      menu.pruned = parse_between(options.pruned, "--pruned-kept", 1);
    } else if (name == "low-rank") {
      menu.ranks.assign(1, 0);  // a quarter of the width, once that is known
      if (options.ranks.empty()) continue;
      menu.ranks.clear();
      for (const double rank : parse_between(options.ranks, "--rank", 1e6)) {
        if (rank != std::floor(rank)) {
          throw UsageError(fmt::format("--rank \"{}\": expected whole numbers", options.ranks));
        }
        menu.ranks.push_back(static_cast<size_t>(rank));
      }
    } else {
      throw UsageError(
          fmt::format("--paths \"{}\": \"{}\" is no path (linear, folded, low-rank, pruned)",
                      options.paths, name));
    }
  }
}

void complete(const CLI::App& command, Options& options) {
  AllocateOptions& allocate = options.allocate;
  refuse_nan("--ridge", allocate.menu.ridge);
  allocate.budget_pct = parse_budget(options.budget);
  allocate.multiples = parse_between(options.multiples, "--multiples", 1e6);
  allocate.interval.kind = parse_interval(options.interval);
  allocate.window = options.text.window;
  parse_paths(options);
  HealOptions& healing = options.healing;
  healing.weights = !options.heal_weights.empty();
  options.heal = options.heal || healing.weights;
  for (const char* name : {"--heal-text", "--heal-tokens", "--heal-from", "--heal-lr",
                           "--heal-gate-lr", "--heal-batch"}) {
    if (!options.heal && command.count(name) != 0) {
      throw UsageError(fmt::format("{} needs --heal or --heal-weights", name));
    }
  }
  TrainOptions& train = healing.train;
  if (!options.heal_from) options.heal_from = kHealFrom * allocate.budget_pct;
  refuse_nan("--heal-from", *options.heal_from);
  refuse_nan("--heal-lr", train.schedule.peak);
  train.steps = (options.heal_tokens + train.batch * options.text.window - 1) /
                (train.batch * options.text.window);
  train.schedule.steps = train.steps;
  train.schedule.warmup = train.steps / 20;
  train.optimizer.weight_decay = 0;  // what was fitted is where it should stay
  train.seed = allocate.seed;
  train.quiet = options.common.quiet;
  if (options.fit == "dense") allocate.fits = {Fit::kDense};
  if (options.fit == "routed") allocate.fits = {Fit::kDense, Fit::kRouted};
  if (options.fit == "original") {
    allocate.fits = {Fit::kDense, Fit::kRoutedOriginal};
  }
}

nlohmann::json healing_json(const Options& options) {
  if (!options.heal) return nullptr;
  const TrainOptions& train = options.healing.train;
  return {{"tokens", options.heal_tokens},
          {"weights", options.healing.weights},
          {"learning_rate", train.schedule.peak},
          {"gate_rate", options.healing.gate_rate},
          {"weight_rate", options.healing.weight_rate},
          {"batch", train.batch},
          {"steps", train.steps}};
}

nlohmann::json settings_json(const Options& options) {
  const AllocateOptions& allocate = options.allocate;
  return {{"paths", options.paths},
          {"kept", allocate.menu.folded},
          {"pruned_kept", allocate.menu.pruned},
          {"ranks", allocate.menu.ranks},
          {"static", allocate.whole_layers},
          {"most_paths", allocate.most_paths == kAllPaths ? nlohmann::json()
                                                          : nlohmann::json(allocate.most_paths)},
          {"save", options.save},
          {"fit", options.fit},
          {"harm_tokens", options.harm_tokens},
          {"ridge", allocate.menu.ridge},
          {"trim", allocate.trim},
          {"dtype", options.text.dtype},
          {"bos", options.text.bos},
          {"native_bf16", has_native_bf16()},
          {"heal", healing_json(options)},
          {"seed", allocate.seed},
          {"bootstrap", bootstrap_json(allocate.draws, allocate.interval)}};
}

// Where what was fitted and measured lies until the allocation is written: beside it, so that the
// same command goes on after it was stopped; without one, in a folder that goes with the command.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& out)
      : temporary_(out.empty()),
        path_(temporary_ ? std::filesystem::temp_directory_path() /
                               fmt::format("halflin-allocate-{}", ::getpid())
                         : std::filesystem::path(out + ".work")) {}
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    if (temporary_) remove();
  }

  const std::filesystem::path& path() const { return path_; }
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  bool temporary_;
  std::filesystem::path path_;
};

// The text to heal on: of its own, or the windows that no split has.
struct HealingText {
  Windows windows;
  nlohmann::json header;
};
HealingText healing_text(const Options& options, const Tokenizer& tokenizer, const Windows& windows,
                         const Splits& splits, const Text& text) {
  if (!options.heal_text.empty()) {
    const Text own = read_text(options.heal_text);
    if (own.sha256 == text.sha256) {
      fail("{} and {}: the same text: without --heal-text, windows that no split has are taken",
           own.path, text.path);
    }
    return {Windows(tokenizer.encode(own.bytes), options.text.window,
                    bos_of(tokenizer, options.text.bos, options.common.model), own.path),
            text_header(own)};
  }
  nlohmann::json ranges = nlohmann::json::array();
  for (const WindowRange& range : splits.rest) ranges.push_back({range.begin, range.end});
  return {windows.part(splits.rest), {{"windows", std::move(ranges)}}};
}

void run(const CLI::App& command, Options& options) {
  complete(command, options);
  Checkpoint checkpoint = read_checkpoint(options.common.model);
  const Config config = checkpoint.architecture.config;
  for (size_t& rank : options.allocate.menu.ranks) {
    if (rank == 0) rank = std::max<size_t>(config.d_model / 4, 1);
  }
  check_window(checkpoint, options.text.window);
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  const Text text = read_text(options.text.path);
  const Windows windows(tokenizer.encode(text.bytes), options.text.window,
                        bos_of(tokenizer, options.text.bos, options.common.model), text.path);
  const Splits splits = make_window_splits(windows, options.sizes);
  nlohmann::json header =
      run_header(kAllocationSchema, "allocation", options.command, options.common.threads,
                 options.common.model, checkpoint, text);
  header["splits"] = splits.description;
  header["settings"] = settings_json(options);
  std::optional<HealingText> healing;
  if (options.heal) {
    healing = healing_text(options, tokenizer, windows, splits, text);
    header["settings"]["heal"]["text"] = healing->header;
    if (healing->windows.count() < options.healing.train.batch) {
      fail(
          "{}: too short to heal on: {} windows of {} tokens are left beside the splits, a batch "
          "has {}",
          healing->windows.name(), healing->windows.count(), healing->windows.window(),
          options.healing.train.batch);
    }
  }
  Allocation allocation;
  allocation.model = allocation_model(options.common.model, checkpoint);
  const std::filesystem::path out = options.out;
  if (!out.empty()) {
    ensure_writable_directory(out.has_parent_path() ? out.parent_path() : ".");
  }

  ThreadPool pool(options.common.threads);
  const Precision precision = measuring_precision(options.text.dtype, options.common.quiet);
  const std::atomic<bool>& interrupted = stop_on_signals();
  const WorkFolder work(options.out);
  const FitStore store(work.path(), header);
  const SampledGradients gradients(work.path() / "gradients",
                                   first_tokens(splits.train, options.harm_tokens), config.d_model);
  std::vector<size_t> layers(config.layers);
  std::iota(layers.begin(), layers.end(), 0);
  prepare_gradients(pool, checkpoint, options.text.window, precision, layers, options.allocate.seed,
                    gradients, interrupted, options.common.quiet);
  if (options.save == "time") {
    // Taken again, they would not be those that stored fits were made with.
    const auto stored = store.times();
    const auto load = [&](size_t window) {
      return load_model(pool, read_checkpoint(options.common.model), precision, window);
    };
    options.allocate.times =
        stored ? *stored
               : time_paths(pool, load, config.max_positions, options.allocate.menu,
                            kTimeRepetitions, options.common.quiet);
    if (!stored) store.save_times(options.allocate.times);
  }
  const Model model = load_model(pool, std::move(checkpoint), precision, options.text.window);
  std::optional<Checkpoint> trained;
  std::optional<Healing> heal;
  if (healing) {
    trained = read_checkpoint(options.common.model);
    options.healing.train.precision = precision;
    heal.emplace(Healing{*trained, healing->windows, options.healing, *options.heal_from,
                         work.path() / fmt::format("heal-{:g}", *options.heal_from),
                         options.heal_weights});
    options.allocate.healing = &*heal;
  }
  AllocateResult result = allocate(pool, model, splits, gradients, &store, options.allocate,
                                   interrupted, options.common.quiet);
  const nlohmann::json json = allocation_json(header, result, options.allocate);
  if (!out.empty()) {
    if (result.model) {
      allocation.model =
          allocation_model(options.heal_weights, read_checkpoint(options.heal_weights));
    }
    allocation.layers = std::move(result.layers);
    allocation.metadata = json;
    save_allocation(out, allocation, precision == Precision::kBF16);
    work.remove();
  }
  if (options.common.json) {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}", allocation_table(json));
  if (!out.empty()) fmt::print("allocation: {}\n", out.string());
}

}  // namespace

void add_allocate(CLI::App& app, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "allocate", "Route tokens of all layers past their MLPs, within a budget of perplexity");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin allocate openai-community/gpt2 --text wiki.test.raw --budget 1% --dtype bf16 "
             "--out gpt2.allocation");
  add_text(*command, options->text);
  AllocateOptions& allocate = options->allocate;
  SplitSizes& sizes = options->sizes;
  command
      ->add_option("--budget", options->budget,
                   "what the routed model may cost, in percent of perplexity on calibration text")
      ->required();
  command->add_option("--out", options->out, "the allocation file to write");
  command
      ->add_option("--paths", options->paths,
                   "cheap paths to choose from: linear, folded, low-rank, pruned")
      ->capture_default_str();
  command->add_option("--kept", options->kept, "shares of neurons kept by folded paths")
      ->capture_default_str();
  command
      ->add_option("--pruned-kept", options->pruned,
                   "shares of neurons kept by pruned paths, their output weights refitted")
      ->capture_default_str();
  command
      ->add_option("--most-paths", allocate.most_paths,
                   "cheap paths of one layer at most: fewer, larger products (default: no limit)")
      ->check(CLI::Range(size_t{1}, kAllPaths));
  command->add_option("--rank", options->ranks,
                      "ranks of low-rank paths (default: a quarter of the width)");
  command
      ->add_option("--save", options->save,
                   "what a path saves: flops, or time, measured here, of a prompt and one by one")
      ->capture_default_str()
      ->check(CLI::IsMember({"flops", "time"}));
  command->add_flag("--static", allocate.whole_layers,
                    "one path for all tokens of a layer, no gates");
  command
      ->add_option(
          "--fit", options->fit,
          "dense: on the unchanged model's activations; routed: also bottom to top on those "
          "of the layers below as routed; original: the same to the unchanged model's "
          "outputs. The best on calibration text is kept")
      ->capture_default_str()
      ->check(CLI::IsMember({"dense", "routed", "original"}));
  command->add_flag("--controls", allocate.controls,
                    "also random routing, the paper's gates, whole layers linear and pruning, each "
                    "at the same FLOPs");
  command
      ->add_option("--control-tokens", allocate.control_tokens,
                   "tokens of the train split that train the paper's gates")
      ->capture_default_str();
  command
      ->add_option("--multiples", options->multiples,
                   "of the price that are tested, too: the Pareto table")
      ->capture_default_str();
  TrainOptions& train = options->healing.train;
  train.batch = 4;
  train.schedule.peak = 1e-3;
  command->add_flag("--heal", options->heal,
                    "then train paths and gates, one path a layer, to predict what the unchanged "
                    "model predicts");
  command->add_option("--heal-weights", options->heal_weights,
                      "--heal, and all of the model's weights train, too, at a tenth of --heal-lr: "
                      "the directory for the model that the allocation is for");
  command->add_option("--heal-text", options->heal_text,
                      "text to heal on (default: what no split has of --text)");
  command->add_option("--heal-tokens", options->heal_tokens, "tokens to heal on")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 40));
  command
      ->add_option("--heal-from", options->heal_from,
                   "what routing costs before it is healed, in percent of perplexity (default: "
                   "twice the budget)")
      ->check(CLI::PositiveNumber);
  command->add_option("--heal-lr", train.schedule.peak, "learning rate at its peak, of paths")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--heal-gate-lr", options->healing.gate_rate,
                   "that of gates, as a share of it; 0: gates stay")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--heal-batch", train.batch, "windows of one step")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  command->add_option("--fit-tokens", sizes.fit_tokens, "tokens that fit the paths")
      ->capture_default_str();
  command->add_option("--train-tokens", sizes.train_tokens, "tokens that train the gates")
      ->capture_default_str();
  command->add_option("--calibration-tokens", sizes.calibration_tokens, "tokens that set the price")
      ->capture_default_str();
  command->add_option("--eval-tokens", sizes.eval_tokens, "tokens to test on, once")
      ->capture_default_str();
  command->add_option("--fit-windows", sizes.fit_windows,
                      "the windows A:B to fit on, instead of --fit-tokens");
  command->add_option("--train-windows", sizes.train_windows, "likewise");
  command->add_option("--calibration-windows", sizes.calibration_windows, "likewise");
  command->add_option("--eval-windows", sizes.eval_windows, "likewise");
  command
      ->add_option("--harm-tokens", options->harm_tokens,
                   "tokens of the train split for one backward pass, which puts errors into nats")
      ->capture_default_str();
  add_statistics(*command, options->interval, "random routing and the bootstrap", allocate.seed,
                 allocate.draws, allocate.menu.ridge);
  options->command = command_line;
  command->final_callback([command, options] { run(*command, *options); });
}

}  // namespace halflin::cli
