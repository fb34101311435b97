// What a report reads: finished and partial sweeps, as `halflin sweep` left them in their
// directories.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace halflin {

// Figures of each test token at one layer; empty where the directory has none.
struct LayerTokens {
  std::vector<float> delta;                          // nats; NaN for the last token of a sequence
  std::vector<float> error_energy;                   // |g(x) - f(x)|^2
  std::map<std::string, std::vector<float>> scores;  // by gate
};

struct ReportRun {
  std::filesystem::path directory;
  std::string label;              // tells the runs of one report apart
  nlohmann::json result;          // result.json; null in a directory of analyses only
  nlohmann::json analysis;        // analysis.json; null without one
  std::vector<int32_t> token_id;  // [test tokens]; empty without tokens.safetensors
  std::vector<uint32_t> token_sequence;
  std::vector<float> token_loss;
  std::vector<LayerTokens> tokens;  // [layers of result], in its order

  // result, or analysis where there is none: model, text, settings, layers are in both.
  const nlohmann::json& header() const { return has_sweep() ? result : analysis; }
  bool has_sweep() const { return !result.is_null(); }
  bool has_tokens() const { return !token_id.empty(); }
};

// Reads every directory and labels the runs: by model, and by text or directory where several share
// one. Throws Error, one line that names the file, where a directory holds no result, one of
// another schema or kind, or figures that contradict each other.
std::vector<ReportRun> read_runs(std::span<const std::filesystem::path> directories);

// "all 30 layers", "4 of 30 layers", or, where layers are still to be measured, "partial: 4 of 30
// layers".
std::string extent(const nlohmann::json& result);

// The last part of a model's name or path, without .gguf.
std::string short_name(const std::string& model);

}  // namespace halflin
