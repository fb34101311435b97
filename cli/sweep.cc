// halflin sweep: measure a model's MLP nonlinearity, layer by layer.
#include "halflin/measure/sweep.h"

#include <algorithm>
#include <memory>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/text.h"
#include "halflin/measure/run.h"
#include "halflin/measure/sweep_result.h"
#include "halflin/report/sweep_table.h"

namespace halflin::cli {

namespace {

constexpr size_t kHarmTokens = 8192;

struct Options {
  Common common;
  TextOptions text;
  RunOptions run;
  std::string layers = ":";
  std::string gates;
  std::string protocol = "halflin";
  std::string fold;
  std::string rates = "0.25,0.5,0.75";
  std::optional<size_t> harm_tokens;
  SplitSizes sizes;
  SweepOptions sweep;
  std::string command;
};

std::vector<double> parse_shares(const std::string& text, const char* option) {
  if (text.empty() || text == "none") return {};
  std::vector<double> values = parse_numbers(text, option);
  for (const double value : values) {
    if (value >= 0 && value <= 1) continue;
    throw UsageError(fmt::format("{} \"{}\": shares lie between 0 and 1", option, text));
  }
  return values;
}

std::vector<std::string> parse_gates(const std::string& text) {
  std::vector<std::string> gates;
  if (text == "none") return gates;
  for (const std::string& name : split(text, ',')) {
    const bool bottleneck = name.size() > 1 && name.size() < 9 && name.front() == 'b' &&
                            name[1] != '0' &&
                            name.find_first_not_of("0123456789", 1) == std::string::npos;
    if (name != "linear" && name != "harm" && !bottleneck) {
      throw UsageError(fmt::format(
          "--gates \"{}\": \"{}\" is no gate (linear, b1, b3, b6, harm, or none)", text, name));
    }
    if (std::find(gates.begin(), gates.end(), name) != gates.end()) {
      throw UsageError(fmt::format("--gates \"{}\": \"{}\" comes twice", text, name));
    }
    gates.push_back(name);
  }
  return gates;
}

void warn(const Options& options, const std::string& line) {
  if (!options.common.quiet) fmt::print(stderr, "halflin: warning: {}\n", line);
}

// Settings that the protocol fills in or forbids.
void complete(Options& options) {
  const bool paper = options.protocol == "paper";
  SweepOptions& sweep = options.sweep;
  refuse_nan("--ridge", sweep.ridge);
  refuse_nan("--budget", sweep.budget_pct);
  sweep.gates = parse_gates(!options.gates.empty() ? options.gates
                            : paper                ? "linear,b1,b3,b6"
                                                   : "linear,b1,b3,b6,harm");
  sweep.rates =
      sweep.gates.empty() ? std::vector<double>() : parse_shares(options.rates, "--rates");
  sweep.fold = parse_shares(options.fold, "--fold");
  sweep.interval.kind = parse_interval(options.run.interval);
  options.sizes.needs_gates = !sweep.gates.empty();
  if (!paper) {
    options.sizes.harm_tokens = options.harm_tokens.value_or(kHarmTokens);
    sweep.skip_gates_above_pct = std::numeric_limits<double>::infinity();
    return;
  }
  sweep.rates.clear();  // they need a calibration split
  if (options.harm_tokens.value_or(0) != 0) {
    throw UsageError("--harm-tokens needs --protocol halflin");
  }
  if (sweep.harm_gate()) {
    throw UsageError("--protocol paper has no calibration split, which harm gates need");
  }
  if (sweep.controls) throw UsageError("--controls needs --protocol halflin");
  if (options.text.bos) throw UsageError("--bos needs --protocol halflin");
  const SplitSizes& sizes = options.sizes;
  if (sizes.fit_windows || sizes.train_windows || sizes.calibration_windows || sizes.harm_windows ||
      sizes.eval_windows) {
    throw UsageError("--protocol paper reads lines: ranges of windows need --protocol halflin");
  }
}

nlohmann::json make_header(const Options& options, const Checkpoint& checkpoint, const Text& text,
                           const Splits& splits) {
  const SweepOptions& sweep = options.sweep;
  nlohmann::json header = run_header(kSweepSchema, "sweep", options.command, options.common.threads,
                                     options.common.model, checkpoint, text);
  header["protocol"] = options.protocol;
  header["splits"] = splits.description;
  header["settings"] = {
      {"layers", sweep.layers},
      {"gates", sweep.gates},
      {"rates", sweep.rates},
      {"fold", sweep.fold},
      {"controls", sweep.controls},
      {"rank", sweep.rank},
      {"ridge", sweep.ridge},
      {"budget_pct", sweep.budget_pct},
      {"dtype", options.text.dtype},
      {"bos", options.text.bos},
      {"native_bf16", has_native_bf16()},
      {"seed", sweep.seed},
      {"bootstrap", bootstrap_json(sweep.draws, sweep.interval,
                                   options.protocol == "paper" ? "line" : "window")}};
  return header;
}

void run(Options& options) {
  complete(options);
  Checkpoint checkpoint = read_checkpoint(options.common.model);
  const Config config = checkpoint.architecture.config;
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  SweepOptions& sweep_options = options.sweep;
  sweep_options.layers = parse_layers(options.layers, config.layers);
  const Text text = read_text(options.text.path);

  Splits splits;
  const bool paper = options.protocol == "paper";
  if (paper) {
    warn(
        options,
        "--protocol paper repeats the official script, flaws included: lines without context, gate "
        "and evaluation lines that overlap, no calibration");
    splits =
        make_paper_splits(tokenizer, text.bytes, config.max_positions, options.sizes, text.path);
  } else {
    check_window(checkpoint, options.text.window);  // before --out is taken for this run
    const Windows windows(tokenizer.encode(text.bytes), options.text.window,
                          bos_of(tokenizer, options.text.bos, options.common.model), text.path);
    splits = make_window_splits(windows, options.sizes);
  }

  const nlohmann::json header = make_header(options, checkpoint, text, splits);
  const SweepStore store(options.run.out, header);
  const auto finished = [&](size_t layer) { return store.layer(layer).has_value(); };
  const auto update = [&]() {
    nlohmann::json result =
        assemble_sweep(header, *store.baseline(), store.finished(sweep_options.layers),
                       sweep_options.layers.size());
    store.save_result(result);
    return result;
  };
  const SampledGradients gradients(std::filesystem::path(options.run.out) / "gradients",
                                   splits.harm, config.d_model);
  const size_t kept = store.finished(sweep_options.layers).size();
  if (kept != 0 && !options.common.quiet) {
    fmt::print(stderr, "{}: {} of {} layers are there already\n", options.run.out, kept,
               sweep_options.layers.size());
  }

  if (kept < sweep_options.layers.size() || !store.baseline()) {
    ThreadPool pool(options.common.threads);
    const Precision precision = measuring_precision(options.text.dtype, options.common.quiet);
    const size_t window = paper ? std::min<size_t>(512, config.max_positions) : options.text.window;
    const std::atomic<bool>& interrupted = stop_on_signals();
    if (!splits.harm.empty()) {
      std::vector<size_t> layers;
      std::copy_if(sweep_options.layers.begin(), sweep_options.layers.end(),
                   std::back_inserter(layers), [&](size_t layer) { return !finished(layer); });
      prepare_gradients(pool, checkpoint, window, precision, layers, sweep_options.seed, gradients,
                        interrupted, options.common.quiet);
    }
    const Model model = load_model(pool, std::move(checkpoint), precision, window);
    const SweepBaseline* baseline = nullptr;  // lives as long as sweep() runs
    if (!options.common.quiet && !options.common.json) {
      fmt::print(stderr, "{}", sweep_table_header());
    }
    sweep(
        pool, model, splits, sweep_options, finished,
        [&](const SweepBaseline& ready) {
          baseline = &ready;
          store.save_baseline(ready, sweep_options);
        },
        [&](const LayerResult& layer) {
          const nlohmann::json result = store.save_layer(layer, *baseline, sweep_options);
          gradients.remove(layer.layer);
          update();
          if (!options.common.quiet && !options.common.json) {
            fmt::print(stderr, "{}", sweep_table_line(result));
          }
        },
        interrupted, options.common.quiet, &gradients);
  }
  gradients.remove();
  const nlohmann::json result = update();
  if (options.common.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print("{}\nresult: {}\n", sweep_table(result), store.result_path().string());
  }
}

}  // namespace

void add_sweep(CLI::App& app, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "sweep",
      "What it costs to make each layer's MLP linear, for all tokens or those a gate picks");
  const auto options = std::make_shared<Options>();
  add_common(
      *command, options->common,
      "halflin sweep EleutherAI/pythia-160m --text wiki.test.raw --layers 0,5:9 --gates harm "
      "--dtype bf16 --out results\n"
      "Finished layers are kept in --out; the same command goes on where it stopped.");
  add_text(*command, options->text);
  SweepOptions& sweep = options->sweep;
  SplitSizes& sizes = options->sizes;
  command->add_option("--layers", options->layers,
                      "e.g. 0,5:9, the end of a range not included (default: all)");
  command->add_option(
      "--gates", options->gates,
      "of linear, b1, b3, b6 (the paper's) and harm, or none (default: all five; the "
      "paper's four with --protocol paper)");
  command
      ->add_option("--protocol", options->protocol,
                   "halflin: disjoint splits, windows with context, intervals; paper: as the "
                   "official script does it")
      ->capture_default_str()
      ->check(CLI::IsMember({"halflin", "paper"}));
  command->add_option("--fit-tokens", sizes.fit_tokens, "tokens that fit the surrogates")
      ->capture_default_str();
  command->add_option("--train-tokens", sizes.train_tokens, "tokens that train the gates")
      ->capture_default_str();
  command
      ->add_option("--calibration-tokens", sizes.calibration_tokens,
                   "tokens that set the gates' thresholds")
      ->capture_default_str();
  command->add_option("--harm-tokens", options->harm_tokens,
                      "tokens for one backward pass that predicts each layer's harm in nats "
                      "(default: 8192; 0: no prediction)");
  command->add_option("--eval-tokens", sizes.eval_tokens, "tokens to evaluate on")
      ->capture_default_str();
  command->add_option("--fit-windows", sizes.fit_windows,
                      "the windows A:B to fit on, instead of --fit-tokens");
  command->add_option("--train-windows", sizes.train_windows, "likewise");
  command->add_option("--calibration-windows", sizes.calibration_windows, "likewise");
  command->add_option("--harm-windows", sizes.harm_windows, "likewise");
  command->add_option("--eval-windows", sizes.eval_windows, "likewise");
  command
      ->add_option("--rates", options->rates, "shares of linear tokens at which gates are compared")
      ->capture_default_str();
  command
      ->add_option("--budget", sweep.budget_pct,
                   "percent of perplexity that the harm gate's own threshold may cost")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--fold", options->fold,
                      "also neuron folding with these shares of neurons kept, e.g. 0.25,0.5");
  command->add_flag("--controls", sweep.controls,
                    "also random and oracle routing; mean output, skip, low rank, narrow MLP");
  command->add_option("--rank", sweep.rank,
                      "of the low-rank control (default: a quarter of the width)");
  add_run(*command, options->run, "random routing, sampled labels and the bootstrap", sweep.seed,
          sweep.draws, sweep.ridge);
  options->command = command_line;
  command->final_callback([options] { with_results_of(options->run.out, [&] { run(*options); }); });
}

}  // namespace halflin::cli
