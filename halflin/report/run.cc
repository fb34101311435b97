#include "halflin/report/run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/io/tensor_file.h"
#include "halflin/measure/sweep_result.h"

namespace halflin {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int kAnalysisSchema = 1;

json read_result(const fs::path& path, const std::string& kind, int schema) {
  json result = parse_json(read_file(path), path.string());
  const json* found_kind = find_member(result, "kind");
  if (found_kind == nullptr || *found_kind != json(kind)) {
    fail("{}: expected a result of kind \"{}\", found {}", path.string(), kind,
         found_kind == nullptr ? "no kind" : found_kind->dump());
  }
  const json* found_schema = find_member(result, "schema");
  if (found_schema == nullptr || *found_schema != json(schema)) {
    fail("{}: expected schema {}, found {}", path.string(), schema,
         found_schema == nullptr ? "none" : found_schema->dump());
  }
  return result;
}

std::vector<float> read_column(const TensorFile& file, const std::string& name, size_t expected) {
  const TensorInfo& tensor = file.at(name);
  if (tensor.shape.size() != 1 || (expected != 0 && tensor.elements() != expected)) {
    fail("{}: {}: expected {} tokens, found {}", file.path, name, expected, tensor.elements());
  }
  // read_f32 refuses NaN, which marks a sequence's last token here.
  if (tensor.dtype != DType::kF32) {
    fail("{}: {}: expected F32, found {}", file.path, name, dtype_name(tensor.dtype));
  }
  std::vector<float> values(tensor.elements());
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

void read_tokens(ReportRun& run) {
  const fs::path path = run.directory / "tokens.safetensors";
  if (!fs::exists(path)) return;
  const TensorFile file = open_safetensors(path);
  const std::vector<float> ids = read_column(file, "id", 0);
  const std::vector<float> sequences = read_column(file, "sequence", ids.size());
  run.token_loss = read_column(file, "loss", ids.size());
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool whole = ids[t] >= 0 && ids[t] < 0x1p24f && ids[t] == std::floor(ids[t]) &&
                       sequences[t] >= (t == 0 ? 0 : sequences[t - 1]) && sequences[t] < 0x1p24f;
    if (!whole) fail("{}: token {}: no id and sequence that can be", path.string(), t);
    run.token_id.push_back(static_cast<int32_t>(ids[t]));
    run.token_sequence.push_back(static_cast<uint32_t>(sequences[t]));
  }
}

void read_layer_tokens(ReportRun& run) {
  for (const json& layer : run.result.at("layers")) {
    LayerTokens tokens;
    const fs::path path = run.directory / "layers" /
                          fmt::format("{:03}.safetensors", layer.at("layer").get<size_t>());
    if (run.has_tokens() && fs::exists(path)) {
      const TensorFile file = open_safetensors(path);
      tokens.delta = read_column(file, "delta", run.token_id.size());
      tokens.error_energy = read_column(file, "error_energy", run.token_id.size());
      for (const json& gate : layer.at("gates")) {
        const std::string name = gate.at("name");
        if (file.find("score." + name) != nullptr) {
          tokens.scores[name] = read_column(file, "score." + name, run.token_id.size());
        }
      }
    }
    run.tokens.push_back(std::move(tokens));
  }
}

ReportRun read_run(const fs::path& directory) {
  ReportRun run;
  run.directory = directory;
  if (!fs::is_directory(directory)) fail("{}: no such directory", directory.string());
  const fs::path result = directory / "result.json";
  const fs::path analysis = directory / "analysis.json";
  if (!fs::exists(result) && !fs::exists(analysis)) {
    fail(
        "{}: holds no result.json (halflin sweep writes it with its first layer) and no "
        "analysis.json",
        directory.string());
  }
  try {
    if (fs::exists(result)) {
      run.result = read_result(result, "sweep", kSweepSchema);
      if (run.result.at("layers").empty()) fail("{}: holds no layer", result.string());
      read_tokens(run);
      read_layer_tokens(run);
    }
    if (fs::exists(analysis)) run.analysis = read_result(analysis, "analysis", kAnalysisSchema);
  } catch (const json::exception& error) {
    fail("{}: {}", (run.has_sweep() ? result : analysis).string(), error.what());
  }
  return run;
}

// The model's name, and what distinguishes runs that share it.
void label_runs(std::vector<ReportRun>& runs) {
  const auto member = [](const json& in, const char* object, const char* key) {
    const json* outer = find_member(in, object);
    const json* inner = outer == nullptr ? nullptr : find_member(*outer, key);
    return inner != nullptr && inner->is_string() ? inner->get<std::string>() : std::string();
  };
  const auto append_where_shared = [&](const std::function<std::string(const ReportRun&)>& part) {
    std::map<std::string, std::vector<ReportRun*>> sharing;
    for (ReportRun& run : runs) sharing[run.label].push_back(&run);
    for (const auto& entry : sharing) {
      const std::vector<ReportRun*>& same = entry.second;
      const bool differ = std::any_of(same.begin(), same.end(), [&](const ReportRun* run) {
        return part(*run) != part(*same.front());
      });
      for (ReportRun* run : same) {
        if (differ) run->label += ", " + part(*run);
      }
    }
  };
  for (ReportRun& run : runs) run.label = short_name(member(run.header(), "model", "name"));
  append_where_shared([&](const ReportRun& run) {
    return fs::path(member(run.header(), "text", "path")).filename().string();
  });
  append_where_shared(
      [](const ReportRun& run) { return std::string(run.has_sweep() ? "sweep" : "analysis"); });
  append_where_shared([&](const ReportRun& run) {
    const json* protocol = find_member(run.header(), "protocol");
    return protocol != nullptr && protocol->is_string() ? protocol->get<std::string>() + " protocol"
                                                        : std::string("no protocol");
  });
  append_where_shared([](const ReportRun& run) { return short_name(run.directory.string()); });
  append_where_shared([](const ReportRun& run) { return run.directory.string(); });
}

}  // namespace

std::vector<ReportRun> read_runs(std::span<const fs::path> directories) {
  std::vector<ReportRun> runs;
  for (const fs::path& directory : directories) {
    for (const ReportRun& run : runs) {
      std::error_code ignored;
      if (fs::equivalent(run.directory, directory, ignored)) {
        throw UsageError(fmt::format("{}: given twice", directory.string()));
      }
    }
    runs.push_back(read_run(directory));
  }
  label_runs(runs);
  return runs;
}

std::string extent(const json& result) {
  const size_t measured = result.at("layers").size();
  const size_t asked = result.at("settings").at("layers").size();
  const size_t all = result.at("model").at("layers");
  if (measured < asked) return fmt::format("partial: {} of {} layers", measured, asked);
  return measured == all ? fmt::format("all {} layers", all)
                         : fmt::format("{} of {} layers", measured, all);
}

std::string short_name(const std::string& model) {
  std::string name = fs::path(model).filename().string();
  if (name.empty()) name = fs::path(model).parent_path().filename().string();
  if (name.size() > 5 && name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name.empty() ? "unnamed model" : name;
}

}  // namespace halflin
