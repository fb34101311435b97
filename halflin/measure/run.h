// What the commands that measure layer by layer share: which layers, what identifies a run, and the
// directory that holds its results and lets it go on where it stopped.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "halflin/io/text.h"
#include "halflin/model/model.h"

namespace halflin {

// "0,5:9" is layers 0, 5, 6, 7, 8; ":" is all of them. Throws UsageError when malformed or empty,
// Error when a layer is not among the `available`.
std::vector<size_t> parse_layers(const std::string& text, size_t available);

// The head of every result file: schema, kind, halflin's version, command, threads, model, text.
// `name` is the model as the user named it.
nlohmann::json run_header(int schema, const std::string& kind, const std::string& command,
                          int threads, const std::string& name, const Checkpoint& checkpoint,
                          const Text& text);
// Path and sha256 of a text, as the header holds them.
nlohmann::json text_header(const Text& text);

// Creates the directory and writes the header into its run.json, or opens one that holds a run with
// the same header but for "command" and "threads". Throws Error where it cannot be written, or
// holds another run (naming the first setting that differs). Returns whether the run was there
// already.
bool claim_directory(const std::filesystem::path& directory, const nlohmann::json& header);

// A directory that holds a run. Each file is written whole, so a killed run leaves finished layers,
// and the same command goes on from there.
//   run.json                   the header: what identifies the run
//   <part>.json                e.g. baseline.json
//   layers/012.json            one layer's figures
//   layers/012.safetensors     its figures token by token
class RunStore {
 public:
  using Columns = std::vector<std::pair<std::string, std::span<const float>>>;

  // As claim_directory does.
  RunStore(std::filesystem::path directory, const nlohmann::json& header);

  std::filesystem::path path(const std::string& file) const { return directory_ / file; }
  // The JSON file <part>.json, none where it is not there.
  std::optional<nlohmann::json> part(const std::string& part) const;
  void save_part(const std::string& part, const nlohmann::json& contents) const;
  // A finished layer's figures, none where it is not finished. Throws Error where its tokens are
  // not those it was saved with.
  std::optional<nlohmann::json> layer(size_t layer) const;
  // A layer is finished from then on. Its figures get a key `tokens_sha256`.
  void save_layer(size_t layer, nlohmann::json figures, const Columns& tokens) const;
  // <file>: float32 columns, all of one length or not, as safetensors.
  void save_columns(const std::string& file, const Columns& columns) const;
  // Of `layers`, those that are finished, in order.
  std::vector<nlohmann::json> finished(std::span<const size_t> layers) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace halflin
