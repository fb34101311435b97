// The command line: parse, call the library, print. One file a subcommand.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halflin/base/threads.h"
#include "halflin/io/tokenizer.h"
#include "halflin/measure/statistics.h"
#include "halflin/model/decode.h"
#include "halflin/model/model.h"

namespace halflin::cli {

// What every command takes.
struct Common {
  std::string model;
  bool json = false;
  bool quiet = false;
  int threads = available_threads();
};
// Adds MODEL, --json, --quiet and --threads, and an example to the help.
void add_common(CLI::App& command, Common& common, const std::string& example);
// The same without MODEL.
void add_common_without_model(CLI::App& command, Common& common, const std::string& example);
// The text file and how it is cut into windows.
struct TextOptions {
  std::string path;
  size_t window = 512;
  bool bos = false;
  std::string dtype = "f32";
};
void add_text(CLI::App& command, TextOptions& text);

// Set by SIGINT and SIGTERM once stop_on_signals was called.
const std::atomic<bool>& stop_on_signals();

// "a,b": its parts, one at least.
std::vector<std::string> split(const std::string& text, char separator);
// The numbers of such a list. Throws UsageError, which names `option`, where a part is none.
std::vector<double> parse_numbers(const std::string& text, const char* option);

// Seeds are uint64; CLI11 alone takes -1 and lets larger numbers saturate.
CLI::Validator seed_range();

// What commands that keep a directory of results share. `seeds` says what --seed feeds.
struct RunOptions {
  std::string out;
  std::string interval = "bca";
};
void add_run(CLI::App& command, RunOptions& run, const std::string& seeds, uint64_t& seed,
             size_t& draws, double& ridge);
// The same without --out.
void add_statistics(CLI::App& command, std::string& interval, const std::string& seeds,
                    uint64_t& seed, size_t& draws, double& ridge);
// As result files state it; `unit` is what is resampled.
nlohmann::json bootstrap_json(size_t draws, const IntervalOptions& interval,
                              const std::string& unit = "window");
IntervalKind parse_interval(const std::string& interval);
// Calls run(), blaming files in `out` for JSON that is not as halflin writes it.
void with_results_of(const std::string& out, const std::function<void()>& run);

// Throws UsageError where an option's value is NaN, which passes CLI11's checks of ranges.
void refuse_nan(const char* option, double value);
Precision parse_precision(const std::string& dtype);
// The same, with a warning where the processor has no bfloat16 products.
Precision measuring_precision(const std::string& dtype, bool quiet);
// The tokenizer beside or inside the checkpoint; its ids are checked against the embedding.
Tokenizer read_tokenizer(const Checkpoint& checkpoint);
// The BOS id that --bos asks for; Error where the tokenizer's configuration adds none.
std::optional<int32_t> bos_of(const Tokenizer& tokenizer, bool asked, const std::string& model);

// Thrown by a command whose output is complete, to end the program with this status.
struct ExitStatus {
  int status;
};

// What commands that generate share: --dtype and --quantize.
struct DecodeChoice {
  std::string dtype = "auto";
  std::string quantize = "none";
};
void add_decode(CLI::App& command, DecodeChoice& choice);
// The precision of a prompt's products: "auto" is bfloat16 where the processor multiplies it and
// the weights are no float32 (or are to be quantised), else float32.
Precision prefill_precision(const DecodeChoice& choice, const Checkpoint& checkpoint);
DecodeOptions decode_options(const DecodeChoice& choice);

void add_info(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_ppl(CLI::App& app);
void add_run_command(CLI::App& app);
void add_bench(CLI::App& app);
void add_export(CLI::App& app);
void add_report(CLI::App& app);
// `command_line` goes into the result file.
void add_sweep(CLI::App& app, const std::string& command_line);
void add_analyze(CLI::App& app, const std::string& command_line);
void add_allocate(CLI::App& app, const std::string& command_line);
void add_train(CLI::App& app, const std::string& command_line);
void add_linearize(CLI::App& app, const std::string& command_line);
void add_finetune(CLI::App& app, const std::string& command_line);

}  // namespace halflin::cli
