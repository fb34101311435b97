#include "halflin/report/token_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "halflin/report/encode.h"
#include "halflin/report/token_text.h"

namespace halflin {

using nlohmann::json;

namespace {

// Names of the gates of any layer, in the order of first mention.
std::vector<std::string> gate_names(const ReportRun& run) {
  std::vector<std::string> names;
  for (const json& layer : run.result.at("layers")) {
    for (const json& gate : layer.at("gates")) {
      const std::string name = gate.at("name");
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

size_t whole_sequences(const ReportRun& run, size_t tokens) {
  const std::vector<uint32_t>& sequence = run.token_sequence;
  if (tokens >= sequence.size()) return sequence.size();
  size_t end = tokens;
  while (end > 0 && sequence[end - 1] == sequence[tokens]) --end;
  while (end == 0 || (end < sequence.size() && sequence[end] == sequence[end - 1])) ++end;
  return end;
}

std::string log_energy(std::span<const float> energy) {
  std::vector<float> logs(energy.size());
  std::transform(energy.begin(), energy.end(), logs.begin(), [](float e) {
    return e > 0 ? std::log10(e) : -std::numeric_limits<float>::infinity();
  });
  return f16_base64(logs);
}

json gate_layers(const ReportRun& run, const std::string& name, size_t tokens) {
  json out = json::array();
  for (size_t i = 0; i < run.tokens.size(); ++i) {
    json entry;  // null where the layer has no such gate
    const auto scores = run.tokens[i].scores.find(name);
    for (const json& gate : run.result.at("layers").at(i).at("gates")) {
      if (gate.at("name").get<std::string>() != name || scores == run.tokens[i].scores.end())
        continue;
      const ScoreBytes packed = quantise_scores(std::span(scores->second).first(tokens),
                                                gate.at("threshold").get<double>());
      entry = {{"bytes", base64(std::as_bytes(std::span(packed.bytes)))},
               {"lo", packed.lo},
               {"threshold", packed.threshold},
               {"hi", packed.hi}};
    }
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

size_t token_map_bytes_per_token(const ReportRun& run) {
  size_t bytes = 4;  // piece, loss
  for (const LayerTokens& layer : run.tokens) {
    if (!layer.delta.empty()) bytes += 4 + layer.scores.size();
  }
  return bytes * 4 / 3 + 1;
}

json token_map(const ReportRun& run, size_t tokens, const TokenBytes& bytes_of) {
  const size_t n = whole_sequences(run, tokens);
  const std::span ids = std::span(run.token_id).first(n);
  const TokenText text = token_text(
      ids, bytes_of ? bytes_of : [](int32_t id) { return fmt::format(" {}", id); });

  json out = {{"run", run.label},          {"tokens", n},
              {"of", run.token_id.size()}, {"known", static_cast<bool>(bytes_of)},
              {"pieces", text.pieces},     {"ids", text.ids}};
  if (text.pieces.size() <= std::numeric_limits<uint16_t>::max()) {
    const std::vector<uint16_t> narrow(text.piece.begin(), text.piece.end());
    out["piece"] = u16_base64(narrow);
    out["wide"] = false;
  } else {
    out["piece"] = u32_base64(text.piece);
    out["wide"] = true;
  }
  std::vector<uint32_t> starts;
  for (size_t t = 0; t < n; ++t) {
    if (t == 0 || run.token_sequence[t] != run.token_sequence[t - 1]) {
      starts.push_back(static_cast<uint32_t>(t));
    }
  }
  out["starts"] = u32_base64(starts);
  out["loss"] = f16_base64(std::span(run.token_loss).first(n));

  out["layers"] = json::array();
  out["delta"] = json::array();
  out["error"] = json::array();
  for (size_t i = 0; i < run.tokens.size(); ++i) {
    const LayerTokens& layer = run.tokens[i];
    out["layers"].push_back(run.result.at("layers").at(i).at("layer"));
    const bool has = !layer.delta.empty();
    out["delta"].push_back(has ? json(f16_base64(std::span(layer.delta).first(n))) : json(nullptr));
    out["error"].push_back(has ? json(log_energy(std::span(layer.error_energy).first(n)))
                               : json(nullptr));
  }
  out["gates"] = json::array();
  for (const std::string& name : gate_names(run)) {
    out["gates"].push_back({{"name", name}, {"layers", gate_layers(run, name, n)}});
  }
  return out;
}

}  // namespace halflin
