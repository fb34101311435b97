// What the commands that train share: their options, and the directory that holds a run.
#pragma once

#include <atomic>

#include "cli/cli.h"
#include "halflin/io/text.h"
#include "halflin/train/run.h"

namespace halflin::cli {

struct TrainingOptions {
  TextOptions text;
  std::string valid_text;
  std::string test_text;
  std::string out;
  uint64_t tokens = 0;  // instead of steps
  std::string schedule = "cosine";
  std::vector<std::string> freeze;
  std::string save_dtype = "f32";
  TrainOptions train;
};
void add_training(CLI::App& command, TrainingOptions& options);
// Fills in what follows from other options; throws UsageError where they contradict each other.
void complete(TrainingOptions& options, bool quiet);
// Every setting that can change a weight, for the run's header.
nlohmann::json settings_json(const TrainingOptions& options);
// What names a run in its state: the header without the command and the threads.
std::string identity_of(nlohmann::json header);
// The texts of a run, the text to train on first; each is another than that.
struct TrainingTexts {
  Text train;
  std::optional<Text> valid, test;
};
TrainingTexts read_training_texts(const TrainingOptions& options);
// Adds what identifies the texts and the settings to a run's header.
void add_to_header(const TrainingTexts& texts, const TrainingOptions& options,
                   nlohmann::json& header);
// They as windows; Error where one is too short for a single window. `model` is named in messages.
struct TrainingWindows {
  Windows train;
  std::optional<Windows> valid, test;
};
TrainingWindows cut_texts(const TrainingTexts& texts, const Tokenizer& tokenizer,
                          const TrainingOptions& options, const std::string& model);

DType parse_save_dtype(const std::string& dtype);

// Mean loss and perplexity with its interval on the held-out texts, "valid" and "test" (where there
// are such), and with gates their use. The windows' losses go to `losses_file` unless it is empty.
nlohmann::json evaluate_held_out(ThreadPool& pool, TrainModel& model,
                                 const TrainingWindows& windows, const TrainingOptions& options,
                                 const std::filesystem::path& losses_file,
                                 const std::atomic<bool>& stop);
// Trains (or goes on with it), evaluates, and returns what result.json is to hold.
nlohmann::json run_training(ThreadPool& pool, TrainModel& model, const TrainingWindows& windows,
                            const TrainingOptions& options, const nlohmann::json& header,
                            const std::atomic<bool>& stop);
// The result of the run in --out, where it is through already.
std::optional<nlohmann::json> finished_result(const TrainingOptions& options);
// Writes result.json, which says that the run is through.
void save_result(const TrainingOptions& options, const nlohmann::json& result);
void print_training_result(const nlohmann::json& result, const TrainingOptions& options,
                           const Common& common);

}  // namespace halflin::cli
