#include "halflin/measure/run.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/io/sha256.h"
#include "halflin/io/tokenizer.h"

namespace halflin {

using nlohmann::json;

namespace {

const char* const kTokensSha256 = "tokens_sha256";

std::string file_sha256(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  return sha256_hex(std::as_bytes(std::span(bytes)));
}

size_t parse_count(const std::string& text, const std::string& whole) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(fmt::format("--layers \"{}\": \"{}\" is no number", whole, text));
  }
  return value;
}

// Where two runs' headers differ first, as a JSON pointer. The command and the thread count change
// no figure and may differ.
std::optional<std::string> first_difference(const json& found, const json& header,
                                            const std::string& at = "") {
  for (const auto& [key, value] : header.items()) {
    if (at.empty() && (key == "command" || key == "threads")) continue;
    if (found.contains(key) && found.at(key) == value) continue;
    const std::string place = fmt::format("{}/{}", at, key);
    if (!found.contains(key) || !found.at(key).is_object() || !value.is_object()) return place;
    return first_difference(found.at(key), value, place).value_or(place);
  }
  return std::nullopt;
}

std::string text_at(const json& header, const json::json_pointer& at) {
  return header.contains(at) ? header.at(at).dump() : "nothing";
}

std::string layer_part(size_t layer) { return fmt::format("layers/{:03}", layer); }

}  // namespace

std::vector<size_t> parse_layers(const std::string& text, size_t available) {
  std::set<size_t> layers;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    at = comma + 1;
    const size_t colon = part.find(':');
    size_t begin = 0;
    size_t end = available;
    if (colon == std::string::npos) {
      begin = parse_count(part, text);
      end = begin + 1;
    } else {
      if (colon > 0) begin = parse_count(part.substr(0, colon), text);
      if (colon + 1 < part.size()) end = parse_count(part.substr(colon + 1), text);
    }
    if (begin >= end) throw UsageError(fmt::format("--layers \"{}\": \"{}\" is empty", text, part));
    if (end > available) {
      fail("--layers \"{}\": layer {} asked for, the model has layers 0 to {}", text, end - 1,
           available - 1);
    }
    for (size_t l = begin; l < end; ++l) layers.insert(l);
  }
  return {layers.begin(), layers.end()};
}

json text_header(const Text& text) { return {{"path", text.path}, {"sha256", text.sha256}}; }

json run_header(int schema, const std::string& kind, const std::string& command, int threads,
                const std::string& name, const Checkpoint& checkpoint, const Text& text) {
  const Config& config = checkpoint.architecture.config;
  if (const size_t bad = find_invalid_utf8(command); bad != std::string::npos) {
    fail(
        "the command line: byte offset {}: expected UTF-8, which result files hold, found byte "
        "0x{:02x}",
        bad, static_cast<unsigned char>(command[bad]));
  }
  json header;
  header["schema"] = schema;
  header["kind"] = kind;
  header["halflin"] = HALFLIN_VERSION;
  header["command"] = command;
  header["threads"] = threads;
  header["model"] = {{"name", name},
                     {"sha256", sha256_files(checkpoint.file)},
                     {"family", config.family},
                     {"layers", config.layers},
                     {"d_model", config.d_model},
                     {"parameters", checkpoint.parameters}};
  header["text"] = text_header(text);
  return header;
}

bool claim_directory(const std::filesystem::path& directory, const json& header) {
  ensure_writable_directory(directory);
  const std::filesystem::path run = directory / "run.json";
  if (std::filesystem::exists(run)) {
    const json found = parse_json(read_file(run), run.string());
    if (const auto place = first_difference(found, header)) {
      const json::json_pointer at(*place);
      fail("{}: holds another run: {} is {} there and {} here; choose another --out", run.string(),
           place->substr(1), text_at(found, at), text_at(header, at));
    }
    return true;
  }
  // Without it nobody knows which run the layers are of.
  std::error_code none;
  const std::filesystem::directory_iterator layers(directory / "layers", none);
  if (!none && layers != std::filesystem::directory_iterator()) {
    fail("{}: expected in a directory that holds {}, found missing; choose another --out",
         run.string(), layers->path().string());
  }
  write_file_atomically(run, header.dump(2) + "\n");
  return false;
}

RunStore::RunStore(std::filesystem::path directory, const json& header)
    : directory_(std::move(directory)) {
  claim_directory(directory_, header);
  ensure_writable_directory(directory_ / "layers");
}

std::optional<json> RunStore::part(const std::string& part) const {
  const std::filesystem::path path = directory_ / (part + ".json");
  if (!std::filesystem::exists(path)) return std::nullopt;
  return parse_json(read_file(path), path.string());
}

void RunStore::save_part(const std::string& part, const json& contents) const {
  write_file_atomically(directory_ / (part + ".json"), contents.dump(2) + "\n");
}

std::optional<json> RunStore::layer(size_t layer) const {
  std::optional<json> figures = part(layer_part(layer));
  if (!figures) return figures;
  const std::filesystem::path tokens = path(layer_part(layer) + ".safetensors");
  if (figures->at(kTokensSha256) != file_sha256(tokens)) {
    fail(
        "{}: expected what layer {} was saved with, found other bytes; remove {} to measure it "
        "again",
        tokens.string(), layer, path(layer_part(layer) + ".json").string());
  }
  return figures;
}

void RunStore::save_layer(size_t layer, json figures, const Columns& tokens) const {
  save_columns(layer_part(layer) + ".safetensors", tokens);
  figures[kTokensSha256] = file_sha256(path(layer_part(layer) + ".safetensors"));
  save_part(layer_part(layer), figures);  // last: a layer is finished once this file is there
}

void RunStore::save_columns(const std::string& file, const Columns& columns) const {
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, values] : columns) {
    tensors.push_back({name, DType::kF32, {values.size()}, std::as_bytes(values)});
  }
  write_safetensors(directory_ / file, tensors, {});
}

std::vector<json> RunStore::finished(std::span<const size_t> layers) const {
  std::vector<json> found;
  for (const size_t l : layers) {
    if (auto figures = part(layer_part(l))) found.push_back(std::move(*figures));
  }
  return found;
}

}  // namespace halflin
