// halflin ppl: per-token loss and perplexity of a text.
#include <memory>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/text.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/perplexity.h"
#include "halflin/measure/windows.h"

namespace halflin::cli {

namespace {

struct Options {
  Common common;
  TextOptions text;
  std::string windows = ":";
  std::string allocation;
  bool per_window = false;
  bool one_by_one = false;
};

void run(const Options& options) {
  Checkpoint checkpoint = read_checkpoint(options.common.model);
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  const Text text = read_text(options.text.path);
  const Windows windows(tokenizer.encode(text.bytes), options.text.window,
                        bos_of(tokenizer, options.text.bos, options.common.model), text.path);
  if (windows.count() == 0) {
    fail("{}: too short for one window of {} tokens", options.text.path, options.text.window);
  }
  const WindowRange range =
      parse_window_range(options.windows, windows.count(), options.text.window, text.path);
  std::vector<Batch> batches;
  for (size_t w = range.begin; w < range.end; ++w) batches.push_back(windows.batch(w));

  std::optional<Allocation> allocation;
  if (!options.allocation.empty()) {
    allocation = load_allocation_for(options.allocation, options.common.model, checkpoint);
  }
  ThreadPool pool(options.common.threads);
  Model model = load_model(pool, std::move(checkpoint), parse_precision(options.text.dtype),
                           options.text.window);
  std::vector<MlpPath> paths;
  if (allocation) paths = pack_allocation(pool, model, *allocation);
  Progress progress("ppl", static_cast<double>(range.count() * options.text.window),
                    options.common.quiet);
  std::vector<std::vector<float>> losses;
  if (options.one_by_one) {
    Decoder decoder(pool, std::move(model), std::move(paths));
    losses = decoded_losses(decoder, batches, progress);
  } else {
    losses = batch_losses(pool, model, batches, paths, progress);
  }
  progress.clear();

  LossSum total;
  std::vector<LossSum> each(batches.size());
  for (size_t b = 0; b < batches.size(); ++b) {
    total.add(losses[b], batches[b].offsets);
    each[b].add(losses[b], batches[b].offsets);
  }
  if (options.common.json) {
    nlohmann::json out = {{"ppl", total.perplexity()},     {"mean_loss", total.mean()},
                          {"tokens", total.count},         {"windows", {range.begin, range.end}},
                          {"window", options.text.window}, {"dtype", options.text.dtype},
                          {"text_sha256", text.sha256}};
    if (options.one_by_one) out["one_by_one"] = true;
    if (allocation) out["allocation"] = options.allocation;
    if (options.per_window) {
      for (const LossSum& window : each) out["window_losses"].push_back(window.mean());
    }
    fmt::print("{}\n", out.dump(2));
    return;
  }
  if (options.per_window) {
    for (size_t b = 0; b < each.size(); ++b) {
      fmt::print("window {:<6} loss {:.6f}  perplexity {:.4f}\n", range.begin + b, each[b].mean(),
                 each[b].perplexity());
    }
  }
  fmt::print("perplexity  {:.4f}\nmean loss   {:.6f} nats\npredictions {} in windows {}:{} of {}\n",
             total.perplexity(), total.mean(), total.count, range.begin, range.end,
             options.text.window);
}

}  // namespace

void add_ppl(CLI::App& app) {
  CLI::App* command = app.add_subcommand("ppl", "Loss and perplexity of a text");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin ppl openai-community/gpt2 --text wiki.test.raw --windows 90:106");
  add_text(*command, options->text);
  command->add_option("--windows", options->windows, "range A:B of windows (default: all)");
  command->add_option("--allocation", options->allocation,
                      "route tokens as this allocation file says");
  command->add_flag("--one-by-one", options->one_by_one,
                    "each token by itself, as run generates: weights as the file has them, "
                    "activations in 8 bits beside quantised ones");
  command->add_flag("--per-window", options->per_window, "also each window's mean loss");
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
