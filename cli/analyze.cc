// halflin analyze: what a model's need for nonlinearity depends on.
#include <memory>

#include "cli/cli.h"
#include "halflin/analyze/analysis.h"
#include "halflin/analyze/summary.h"
#include "halflin/base/error.h"
#include "halflin/io/text.h"
#include "halflin/measure/run.h"

namespace halflin::cli {

namespace {

struct Options {
  Common common;
  TextOptions text;
  std::string second_text;
  RunOptions run;
  std::string layers = ":";
  size_t fit_tokens = 10000;
  size_t tokens = 25000;
  AnalysisOptions analysis;
  std::string command;
};

nlohmann::json make_header(const Options& options, const Checkpoint& checkpoint, const Text& text,
                           const Text& second, const AnalysisTexts& texts) {
  const AnalysisOptions& analysis = options.analysis;
  const NoFlyRules& rules = analysis.no_fly;
  nlohmann::json header =
      run_header(kAnalysisSchema, "analysis", options.command, options.common.threads,
                 options.common.model, checkpoint, text);
  header["second_text"] = text_header(second);
  header["splits"] = texts.description;
  header["settings"] = {{"layers", analysis.layers},
                        {"ridge", analysis.ridge},
                        {"dtype", options.text.dtype},
                        {"bos", options.text.bos},
                        {"native_bf16", has_native_bf16()},
                        {"seed", analysis.seed},
                        {"no_fly",
                         {{"at_least", rules.at_least},
                          {"mean_above", rules.mean_above},
                          {"positive_above", rules.positive_above},
                          {"elsewhere_at_least", rules.elsewhere_at_least}}},
                        {"bootstrap", bootstrap_json(analysis.draws, analysis.interval)}};
  return header;
}

// Tokens of both texts, in the order of each layer's columns.
void save_tokens(const RunStore& store, const AnalysisTexts& texts) {
  std::vector<std::vector<float>> kept;
  std::vector<std::string> names;
  for (const auto& [name, text] : {std::pair("a", &texts.a), std::pair("b", &texts.b)}) {
    kept.emplace_back(text->input.begin(), text->input.end());
    names.push_back(std::string("id_") + name);
    kept.emplace_back(text->target.begin(), text->target.end());
    names.push_back(std::string("target_") + name);
    kept.emplace_back(text->window.begin(), text->window.end());
    names.push_back(std::string("window_") + name);
  }
  RunStore::Columns columns;
  for (size_t i = 0; i < kept.size(); ++i) columns.emplace_back(names[i], kept[i]);
  store.save_columns("tokens.safetensors", columns);
}

void run(Options& options) {
  refuse_nan("--ridge", options.analysis.ridge);
  Checkpoint checkpoint = read_checkpoint(options.common.model);
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  AnalysisOptions& analysis = options.analysis;
  analysis.layers = parse_layers(options.layers, checkpoint.architecture.config.layers);
  analysis.interval.kind = parse_interval(options.run.interval);
  const Text text = read_text(options.text.path);
  const Text second = read_text(options.second_text);
  if (text.bytes == second.bytes) {
    fail("{} and {} are the same text: transfer needs two", text.path, second.path);
  }
  check_window(checkpoint, options.text.window);  // before --out is taken for this run
  const AnalysisTexts texts = make_analysis_texts(
      tokenizer.encode(text.bytes), tokenizer.encode(second.bytes), options.text.window,
      bos_of(tokenizer, options.text.bos, options.common.model), options.fit_tokens,
      options.tokens);

  const nlohmann::json header = make_header(options, checkpoint, text, second, texts);
  const RunStore store(options.run.out, header);
  const auto update = [&]() {
    nlohmann::json result =
        assemble_analysis(header, store.finished(analysis.layers), analysis.layers.size());
    store.save_part("analysis", result);
    return result;
  };
  const bool lines = !options.common.quiet && !options.common.json;
  const size_t kept = store.finished(analysis.layers).size();
  if (kept != 0 && !options.common.quiet) {
    fmt::print(stderr, "{}: {} of {} layers are there already\n", options.run.out, kept,
               analysis.layers.size());
  }
  if (kept < analysis.layers.size()) {
    save_tokens(store, texts);
    ThreadPool pool(options.common.threads);
    const Precision precision = measuring_precision(options.text.dtype, options.common.quiet);
    const Model model = load_model(pool, std::move(checkpoint), precision, options.text.window);
    const std::atomic<bool>& interrupted = stop_on_signals();
    if (lines) fmt::print(stderr, "{}", analysis_header());
    analyze(
        pool, model, tokenizer, texts, analysis,
        [&](size_t layer) { return store.layer(layer).has_value(); },
        [&](const AnalyzedLayer& layer) {
          const nlohmann::json& figures = layer.analysis.figures;
          RunStore::Columns columns = {{"delta_a", layer.delta_a}, {"delta_b", layer.delta_b}};
          if (!layer.analysis.scores_a.empty()) {
            columns.emplace_back("score_a", layer.analysis.scores_a);
          }
          store.save_layer(figures.at("layer"), figures, columns);
          update();
          if (lines) fmt::print(stderr, "{}", analysis_line(figures));
        },
        interrupted, options.common.quiet);
  }
  const nlohmann::json result = update();
  if (options.common.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print("{}\nresult: {}\n", analysis_summary(result), store.path("analysis.json").string());
  }
}

}  // namespace

void add_analyze(CLI::App& app, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "analyze", "What the need for nonlinearity depends on: token or context, lists, features");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin analyze EleutherAI/pythia-160m --text wiki.test.raw --second-text book.txt "
             "--layers 0,5:9 --dtype bf16 --out analysis\n"
             "Finished layers are kept in --out; the same command goes on where it stopped.");
  add_text(*command, options->text);
  AnalysisOptions& analysis = options->analysis;
  command
      ->add_option("--second-text", options->second_text,
                   "another UTF-8 text, to see what carries over")
      ->required();
  command->add_option("--layers", options->layers,
                      "e.g. 0,5:9, the end of a range not included (default: all)");
  command
      ->add_option("--tokens", options->tokens,
                   "tokens to analyse of each text, half to train on and half to judge by")
      ->capture_default_str();
  command->add_option("--fit-tokens", options->fit_tokens, "tokens that fit the surrogates")
      ->capture_default_str();
  add_run(*command, options->run, "the bootstrap, forests, clusters and noise", analysis.seed,
          analysis.draws, analysis.ridge);
  options->command = command_line;
  command->final_callback([options] { with_results_of(options->run.out, [&] { run(*options); }); });
}

}  // namespace halflin::cli
