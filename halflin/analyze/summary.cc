#include "halflin/analyze/summary.h"

#include <fmt/format.h>

namespace halflin {

using nlohmann::json;

namespace {

// The figure at a pointer by the format, "too few" where there are not enough tokens for it, or
// "-".
std::string value_at(const json& layer, const std::string& pointer, fmt::string_view format,
                     double factor = 1) {
  const json::json_pointer at(pointer);
  if (!layer.contains(at)) return "-";
  const json& found = layer.at(at);
  if (found.is_object() && found.contains("too_few")) return "too few";
  const json& value = found.is_object() ? found.at("value") : found;
  if (!value.is_number()) return "-";
  return fmt::format(fmt::runtime(format), factor * value.get<double>());
}

constexpr const char* kLine =
    "{:>5}  {:>8} {:>8}  {:>5} {:>5} {:>5} {:>5} {:>5}  {:>6} {:>6} {:>6} "
    "{:>6}  {:>7} {:>7}  {:>6}  {:>5}\n";

std::string number(const json& value) {
  return value.is_number() ? fmt::format("{:.4g}", value.get<double>()) : "-";
}

}  // namespace

std::string analysis_header() {
  return fmt::format("{:>5}  {:^17}  {:^29}  {:^27}  {:^15}\n", "", "all linear",
                     "held-out AUC of gates", "R² of δ, %", "lists A to B") +
         fmt::format(fmt::runtime(kLine), "layer", "A", "B", "whole", "token", "ctx", "types",
                     "on B", "token", "ctx", "both", "surf.", "r", "ceiling", "tail %", "clust");
}

std::string analysis_line(const json& layer) {
  if (layer.contains("failed")) {
    return fmt::format("{:>5}  {}\n", layer.at("layer").get<size_t>(),
                       layer.at("failed").get<std::string>());
  }
  const auto auc = [&](const char* name) {
    return value_at(layer, std::string("/gates/auc/") + name, "{:.3f}");
  };
  const auto r2 = [&](const char* name) {
    return value_at(layer, std::string("/explained/") + name, "{:.2f}", 100);
  };
  const size_t extreme = layer.at("clusters").at("always").get<size_t>() +
                         layer.at("clusters").at("never").get<size_t>();
  return fmt::format(
      fmt::runtime(kLine), layer.at("layer").get<size_t>(),
      value_at(layer, "/all_linear/a", "{:+.2f} %"), value_at(layer, "/all_linear/b", "{:+.2f} %"),
      auc("whole"), auc("token"), auc("context"), auc("token_type_means"),
      value_at(layer, "/stability/texts/auc_of_a_on_b", "{:.3f}"), r2("input_token"), r2("context"),
      r2("both"), r2("surface/forest"), value_at(layer, "/no_fly/target/correlation", "{:+.2f}"),
      value_at(layer, "/no_fly/target/ceiling", "{:.2f}"),
      value_at(layer, "/delta/a/harm_in_worst/2", "{:.0f}", 100), extreme);
}

std::string analysis_summary(const json& result) {
  std::string text = analysis_header();
  for (const json& layer : result.at("layers")) text += analysis_line(layer);
  text +=
      "\nwhole, token, ctx: gates on the MLP's input and its two parts; types: on the token's mean "
      "input; on B: the whole gate on text B\ntail: share of all harm in the worst 10 % of tokens; "
      "clust: clusters of 20 that need the MLP always or never\n\n";
  if (!result.at("complete").get<bool>()) text += "partial: some layers are missing\n";
  text += fmt::format("{:<14} {:<62} {:>9}  {:<20} {}\n", "verdict", "statement", "figure",
                      "95 % interval", "layers for/against");
  for (const json& s : result.at("statements")) {
    const bool measured = s.at("value").is_number();
    text += fmt::format(
        "{:<14} {:<62} {:>9}  {:<20} {}\n", s.at("verdict").get<std::string>(),
        s.at("statement").get<std::string>(), number(s.at("value")),
        measured ? fmt::format("[{}, {}]", number(s.at("ci_lo")), number(s.at("ci_hi")))
                 : s.value("note", ""),
        measured ? fmt::format("{}/{} of {}", s.at("layers_hold").get<size_t>(),
                               s.at("layers_fail").get<size_t>(), s.at("layers").get<size_t>())
                 : "");
  }
  return text;
}

}  // namespace halflin
