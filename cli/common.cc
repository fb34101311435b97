#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <stdexcept>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/hub.h"

namespace halflin::cli {

void add_common(CLI::App& command, Common& common, const std::string& example) {
  command
      .add_option("MODEL", common.model,
                  "Hugging Face directory, .gguf file, or a name in the Hugging Face cache")
      ->required();
  add_common_without_model(command, common, example);
}

void add_common_without_model(CLI::App& command, Common& common, const std::string& example) {
  command.add_flag("--json", common.json, "print the result as JSON");
  command.add_flag("--quiet", common.quiet, "no progress and no warnings on stderr");
  command.add_option("--threads", common.threads, "worker threads (default: all available cores)")
      ->check(CLI::Range(1, 1024));
  command.footer("Example:\n  " + example);
}

void add_text(CLI::App& command, TextOptions& text) {
  command.add_option("--text", text.path, "UTF-8 text to measure on")->required();
  command.add_option("--window", text.window, "tokens of one window of context")
      ->capture_default_str()
      ->check(CLI::Range(size_t{2}, size_t{1} << 20));
  command.add_flag("--bos", text.bos,
                   "begin each window with the BOS that the tokenizer's configuration adds");
  command.add_option("--dtype", text.dtype, "precision of matrix products")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
}

const std::atomic<bool>& stop_on_signals() {
  static std::atomic<bool> stop{false};
  std::signal(SIGINT, [](int) { stop = true; });
  std::signal(SIGTERM, [](int) { stop = true; });
  return stop;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<double> parse_numbers(const std::string& text, const char* option) {
  std::vector<double> values;
  for (const std::string& part : split(text, ',')) {
    try {
      size_t used = 0;
      values.push_back(std::stod(part, &used));
      if (used != part.size()) throw std::invalid_argument(part);
    } catch (const std::logic_error&) {
      throw UsageError(fmt::format("{} \"{}\": \"{}\" is no number", option, text, part));
    }
  }
  return values;
}

CLI::Validator seed_range() {
  const auto check = [](const std::string& text) -> std::string {
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error == std::errc() && end == text.data() + text.size()) return {};
    return fmt::format("\"{}\": expected a whole number from 0 to {}", text, UINT64_MAX);
  };
  return {check, "", "seed"};
}

void add_run(CLI::App& command, RunOptions& run, const std::string& seeds, uint64_t& seed,
             size_t& draws, double& ridge) {
  command.add_option("--out", run.out, "directory for the results")->required();
  add_statistics(command, run.interval, seeds, seed, draws, ridge);
}

void add_statistics(CLI::App& command, std::string& interval, const std::string& seeds,
                    uint64_t& seed, size_t& draws, double& ridge) {
  command.add_option("--ridge", ridge, "penalty of surrogates, on unnormalised sums")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--seed", seed, "of " + seeds)->capture_default_str()->check(seed_range());
  command.add_option("--bootstrap", draws, "draws")
      ->capture_default_str()
      ->check(CLI::Range(100, 1000000));
  command.add_option("--interval", interval, "95 % bootstrap interval")
      ->capture_default_str()
      ->check(CLI::IsMember({"bca", "percentile"}));
}

nlohmann::json bootstrap_json(size_t draws, const IntervalOptions& interval,
                              const std::string& unit) {
  return {{"draws", draws},
          {"interval", interval.kind == IntervalKind::kBCa ? "bca" : "percentile"},
          {"confidence", interval.confidence},
          {"unit", unit}};
}

IntervalKind parse_interval(const std::string& interval) {
  return interval == "bca" ? IntervalKind::kBCa : IntervalKind::kPercentile;
}

void with_results_of(const std::string& out, const std::function<void()>& run) {
  try {
    run();
  } catch (const nlohmann::json::exception& error) {
    // A file of an earlier run, without a key or with a value of another type.
    fail("{}: no results as halflin writes them: {}; choose another --out", out, error.what());
  }
}

void refuse_nan(const char* option, double value) {
  if (std::isnan(value)) throw UsageError(fmt::format("{}: expected a number, found nan", option));
}

Precision parse_precision(const std::string& dtype) {
  return dtype == "bf16" ? Precision::kBF16 : Precision::kF32;
}

Precision measuring_precision(const std::string& dtype, bool quiet) {
  const Precision precision = parse_precision(dtype);
  if (precision == Precision::kBF16 && !has_native_bf16() && !quiet) {
    fmt::print(stderr,
               "halflin: warning: this CPU has no bfloat16 arithmetic: bfloat16 weights, float32 "
               "products\n");
  }
  return precision;
}

void add_decode(CLI::App& command, DecodeChoice& choice) {
  command
      .add_option("--dtype", choice.dtype,
                  "precision of a prompt's matrix products; with f32, single tokens also read "
                  "quantised weights in float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "f32", "bf16"}));
  command
      .add_option("--quantize", choice.quantize,
                  "what single tokens read in place of F32, F16 and BF16 weights")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "q8_0", "q4_0"}));
}

Precision prefill_precision(const DecodeChoice& choice, const Checkpoint& checkpoint) {
  if (choice.dtype != "auto") return parse_precision(choice.dtype);
  const TensorNames& names = checkpoint.architecture.layout.names;
  const TensorInfo& weight = checkpoint.file.at(layer_name(names.up, 0) + ".weight");
  const bool rounded = weight.dtype != DType::kF32 || choice.quantize != "none";
  return rounded && has_native_bf16() ? Precision::kBF16 : Precision::kF32;
}

DecodeOptions decode_options(const DecodeChoice& choice) {
  DecodeOptions options;
  options.quantize = choice.quantize == "q8_0"   ? Quantize::kQ8_0
                     : choice.quantize == "q4_0" ? Quantize::kQ4_0
                                                 : Quantize::kNone;
  options.exact = choice.dtype == "f32" && options.quantize == Quantize::kNone;
  return options;
}

Tokenizer read_tokenizer(const Checkpoint& checkpoint) {
  const ModelFiles files = find_model(checkpoint.path);
  Tokenizer tokenizer = files.gguf.empty()
                            ? Tokenizer::from_directory(files.directory)
                            : Tokenizer::from_gguf(checkpoint.file.metadata, files.gguf.string());
  if (tokenizer.size() > checkpoint.architecture.config.vocab) {
    fail("{}: the tokenizer has ids up to {}, the embedding only {} rows", checkpoint.path,
         tokenizer.size() - 1, checkpoint.architecture.config.vocab);
  }
  return tokenizer;
}

std::optional<int32_t> bos_of(const Tokenizer& tokenizer, bool asked, const std::string& model) {
  if (!asked) return std::nullopt;
  if (!tokenizer.added_bos()) {
    fail("{}: --bos, but the tokenizer's configuration adds no BOS token", model);
  }
  return tokenizer.added_bos();
}

}  // namespace halflin::cli
