#include "cli/training.h"

#include <algorithm>
#include <csignal>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/io/sha256.h"
#include "halflin/measure/run.h"
#include "halflin/train/places.h"

namespace halflin::cli {

namespace {

// With gates: how often they are open, and the FLOPs that go with it.
nlohmann::json evaluation_json(const TrainModel& model, const Evaluation& evaluation,
                               size_t window) {
  constexpr size_t kDraws = 2000;
  constexpr size_t kMostWindows = 65535;  // of the bootstrap
  nlohmann::json out = {{"loss", evaluation.loss.mean()},
                        {"ppl", evaluation.loss.perplexity()},
                        {"predictions", evaluation.loss.count},
                        {"windows", evaluation.window_loss.size()}};
  if (evaluation.window_loss.size() <= kMostWindows) {
    std::vector<double> sums = evaluation.window_loss;
    for (double& sum : sums) sum *= static_cast<double>(window - 1);
    const std::vector<double> predictions(sums.size(), static_cast<double>(window - 1));
    const Interval interval = perplexity(draw_windows(sums.size(), kDraws, 0), sums, predictions);
    out["ppl_ci_lo"] = interval.lo;
    out["ppl_ci_hi"] = interval.hi;
  }
  const bool gated =
      std::any_of(model.layers.begin(), model.layers.end(), [](const TrainLayer& layer) {
        return layer.mlp.route == Route::kSoft || layer.mlp.route == Route::kHard;
      });
  if (gated) {
    out["full_share"] = evaluation.full_share;
    out["gate_mean"] = evaluation.gate_mean;
    out["flops_per_token"] = model_flops(model, window, evaluation.full_share).total();
  }
  return out;
}

}  // namespace

void add_training(CLI::App& command, TrainingOptions& options) {
  TrainOptions& train = options.train;
  TextOptions& text = options.text;
  AdamWOptions& adamw = train.optimizer;
  command.add_option("--text", text.path, "UTF-8 text to train on")->required();
  command.add_option("--valid-text", options.valid_text,
                     "text to evaluate on at --evaluate-every and at the end");
  command.add_option("--test-text", options.test_text, "text to evaluate on at the end alone");
  command.add_option("--out", options.out, "directory for the model, its log and its state")
      ->required();
  command.add_option("--window", text.window, "tokens of one window of context")
      ->capture_default_str()
      ->check(CLI::Range(size_t{2}, size_t{1} << 20));
  command.add_option("--steps", train.steps, "optimiser steps")->check(CLI::Range(1, 1 << 30));
  command.add_option("--tokens", options.tokens, "tokens to train on, instead of --steps")
      ->excludes("--steps")
      ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 50));
  command.add_option("--batch", train.batch, "windows of one pass")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--accumulate", train.accumulate, "passes whose gradients make one step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--lr", train.schedule.peak, "learning rate at its peak")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--schedule", options.schedule, "of the learning rate after the warm-up")
      ->capture_default_str()
      ->check(CLI::IsMember({"cosine", "constant"}));
  command.add_option("--warmup", train.schedule.warmup, "steps in which the learning rate rises")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  command
      .add_option("--final-lr", train.schedule.final_share,
                  "share of the peak where a cosine schedule ends")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--weight-decay", adamw.weight_decay,
                  "decoupled; never of biases, norms and constants")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--beta1", adamw.beta1, "AdamW's")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9999999));
  command.add_option("--beta2", adamw.beta2, "AdamW's")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9999999));
  command.add_option("--clip", adamw.clip, "largest norm of the gradient; 0: no clipping")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--freeze", options.freeze,
                     "parameters that stay as they are, e.g. \"layers.*.mlp.*\" (more than one "
                     "pattern may be given)");
  command.add_option("--seed", train.seed, "of the windows' order")
      ->capture_default_str()
      ->check(seed_range());
  command.add_option("--dtype", text.dtype, "precision of matrix products; weights stay float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  command.add_flag("--recompute", train.recompute,
                   "compute activations again in the backward pass instead of keeping them");
  command
      .add_option("--save-every", train.save_every,
                  "steps between saved states, from which the same command goes on")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  command.add_option("--log-every", train.log_every, "steps between lines of log.jsonl")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command
      .add_option("--evaluate-every", train.evaluate_every,
                  "steps between evaluations on --valid-text; 0: only at the end")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  command
      .add_option("--evaluate-windows", train.evaluate_windows, "windows of --valid-text for those")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command.add_option("--save-dtype", options.save_dtype, "number format of the saved model")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
}

void complete(TrainingOptions& options, bool quiet) {
  TrainOptions& train = options.train;
  refuse_nan("--lr", train.schedule.peak);
  refuse_nan("--weight-decay", train.optimizer.weight_decay);
  refuse_nan("--clip", train.optimizer.clip);
  refuse_nan("--beta1", train.optimizer.beta1);
  refuse_nan("--beta2", train.optimizer.beta2);
  refuse_nan("--final-lr", train.schedule.final_share);
  if (options.tokens != 0) {
    const size_t tokens_a_step = train.batch * train.accumulate * options.text.window;
    train.steps = std::max<size_t>(options.tokens / tokens_a_step, 1);
  }
  if (train.schedule.warmup > train.steps) {
    throw UsageError(
        fmt::format("--warmup {}: more than the {} steps", train.schedule.warmup, train.steps));
  }
  train.schedule.kind =
      options.schedule == "cosine" ? Schedule::Kind::kCosine : Schedule::Kind::kConstant;
  train.schedule.steps = train.steps;
  train.precision = parse_precision(options.text.dtype);
  train.quiet = quiet;
  for (const std::string& pattern : options.freeze) {
    ParameterRule rule;
    rule.pattern = pattern;
    rule.frozen = true;
    train.optimizer.rules.push_back(rule);
  }
  if (train.precision == Precision::kBF16 && !has_native_bf16() && !quiet) {
    fmt::print(stderr, "halflin: warning: this CPU has no bfloat16 arithmetic: float32 products\n");
  }
}

nlohmann::json settings_json(const TrainingOptions& options) {
  const TrainOptions& train = options.train;
  const AdamWOptions& adamw = train.optimizer;
  return {{"steps", train.steps},
          {"window", options.text.window},
          {"batch", train.batch},
          {"accumulate", train.accumulate},
          {"learning_rate", train.schedule.peak},
          {"schedule", options.schedule},
          {"warmup", train.schedule.warmup},
          {"final_learning_rate_share", train.schedule.final_share},
          {"weight_decay", adamw.weight_decay},
          {"beta1", adamw.beta1},
          {"beta2", adamw.beta2},
          {"clip", adamw.clip},
          {"freeze", options.freeze},
          {"seed", train.seed},
          {"dtype", options.text.dtype},
          {"native_bf16", has_native_bf16()},
          {"log_every", train.log_every},
          {"evaluate_every", train.evaluate_every},
          {"evaluate_windows", train.evaluate_windows},
          {"save_dtype", options.save_dtype}};
}

std::string identity_of(nlohmann::json header) {
  header.erase("command");
  header.erase("threads");
  const std::string text = header.dump();
  return sha256_hex(std::as_bytes(std::span(text)));
}

TrainingTexts read_training_texts(const TrainingOptions& options) {
  TrainingTexts texts;
  texts.train = read_text(options.text.path);
  if (!options.valid_text.empty()) texts.valid = read_text(options.valid_text);
  if (!options.test_text.empty()) texts.test = read_text(options.test_text);
  const auto refuse_same = [&](const std::optional<Text>& held_out, const char* option) {
    if (held_out && held_out->sha256 == texts.train.sha256) {
      throw UsageError(fmt::format("{} {}: the text to train on", option, held_out->path));
    }
  };
  refuse_same(texts.valid, "--valid-text");
  refuse_same(texts.test, "--test-text");
  return texts;
}

void add_to_header(const TrainingTexts& texts, const TrainingOptions& options,
                   nlohmann::json& header) {
  header["text"] = text_header(texts.train);
  header["settings"] = settings_json(options);
  if (texts.valid) header["valid_text"] = text_header(*texts.valid);
  if (texts.test) header["test_text"] = text_header(*texts.test);
}

TrainingWindows cut_texts(const TrainingTexts& texts, const Tokenizer& tokenizer,
                          const TrainingOptions& options, const std::string& model) {
  const auto cut = [&](const Text& text) {
    Windows windows(tokenizer.encode(text.bytes), options.text.window,
                    bos_of(tokenizer, options.text.bos, model), text.path);
    if (windows.count() == 0) {
      fail("{}: too short for one window of {} tokens", text.path, options.text.window);
    }
    return windows;
  };
  TrainingWindows windows{cut(texts.train), {}, {}};
  if (texts.valid) windows.valid = cut(*texts.valid);
  if (texts.test) windows.test = cut(*texts.test);
  return windows;
}

DType parse_save_dtype(const std::string& dtype) {
  return dtype == "bf16" ? DType::kBF16 : DType::kF32;
}

nlohmann::json evaluate_held_out(ThreadPool& pool, TrainModel& model,
                                 const TrainingWindows& windows, const TrainingOptions& options,
                                 const std::filesystem::path& losses_file,
                                 const std::atomic<bool>& stop) {
  nlohmann::json result = nlohmann::json::object();
  TrainWorkspace workspace;
  workspace.precision = options.train.precision;
  std::vector<std::vector<float>> losses;
  std::vector<TensorToWrite> columns;
  losses.reserve(2);  // columns point into it
  const auto evaluate_on = [&](const std::optional<Windows>& text, const char* split) {
    if (!text) return;
    const Evaluation evaluation =
        evaluate_windows(pool, model, *text, text->count(), options.train.batch, workspace, stop);
    result[split] = evaluation_json(model, evaluation, text->window());
    losses.emplace_back(evaluation.window_loss.begin(), evaluation.window_loss.end());
    columns.push_back(
        {split, DType::kF32, {losses.back().size()}, std::as_bytes(std::span(losses.back()))});
  };
  evaluate_on(windows.valid, "valid");
  evaluate_on(windows.test, "test");
  if (!columns.empty() && !losses_file.empty()) write_safetensors(losses_file, columns, {});
  return result;
}

nlohmann::json run_training(ThreadPool& pool, TrainModel& model, const TrainingWindows& windows,
                            const TrainingOptions& options, const nlohmann::json& header,
                            const std::atomic<bool>& stop) {
  const TrainOptions& settings = options.train;
  train(pool, model, windows.train, windows.valid ? &*windows.valid : nullptr, settings,
        {options.out, identity_of(header)}, stop);
  nlohmann::json result = header;
  size_t count = 0, trained = 0;
  for (const Parameter* p : parameters(model)) {
    count += p->value.size();
    trained += p->gradient.size();
  }
  const size_t window = windows.train.window();
  result["parameters"] = count;
  result["trained_parameters"] = trained;
  result["tokens"] = settings.steps * settings.batch * settings.accumulate * window;
  result["text_tokens"] = windows.train.count() * window;
  result["flops_per_token"] = model_flops(model, window, {}).total();
  result.update(evaluate_held_out(pool, model, windows, options,
                                  std::filesystem::path(options.out) / "losses.safetensors", stop));
  return result;
}

std::optional<nlohmann::json> finished_result(const TrainingOptions& options) {
  const std::filesystem::path path = std::filesystem::path(options.out) / "result.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  return parse_json(read_file(path), path.string());
}

void save_result(const TrainingOptions& options, const nlohmann::json& result) {
  write_file_atomically(std::filesystem::path(options.out) / "result.json", result.dump(2) + "\n");
}

void print_training_result(const nlohmann::json& result, const TrainingOptions& options,
                           const Common& common) {
  if (common.json) {
    fmt::print("{}\n", result.dump(2));
    return;
  }
  fmt::print("{} parameters, {:.3g} FLOPs a token, {} tokens\n", result["parameters"].dump(),
             result["flops_per_token"].get<double>(), result["tokens"].dump());
  for (const char* split : {"valid", "test"}) {
    if (!result.contains(split)) continue;
    const nlohmann::json& found = result[split];
    fmt::print("{:<5} loss {:.4f} nats, perplexity {:.3f}", split, found["loss"].get<double>(),
               found["ppl"].get<double>());
    if (result.contains("before")) {
      fmt::print(" (before: {:.4f}, {:.3f})", result["before"][split]["loss"].get<double>(),
                 result["before"][split]["ppl"].get<double>());
    }
    fmt::print("\n");
  }
  fmt::print("model: {}\n", options.out);
}

}  // namespace halflin::cli
