#include "halflin/report/linearize_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "halflin/report/terminal.h"

namespace halflin {

using nlohmann::json;

namespace {

std::string number(double value) {
  return std::abs(value) >= 10000 ? fmt::format("{:.3e}", value) : fmt::format("{:.2f}", value);
}

std::string judged(const json& figure) {
  return figure.at("too_few_windows") ? percent(figure.at("delta_ppl_pct")) : change(figure);
}

std::string ppl(const json& figure) { return number(figure.at("ppl")); }

constexpr const char* kStageLine = "{:>5}  {:<12} {:>6} {:>9} {:>9} {:>9}  {:<32} {:>9}\n";

}  // namespace

std::string linearize_table_header() {
  return fmt::format(fmt::runtime(kStageLine), "stage", "replaces", "steps", "before", "replaced",
                     "trained", "against the original", "control");
}

std::string linearize_table_line(const json& stage) {
  const auto replaced = stage.at("layers").get<std::vector<size_t>>();
  const std::string layers = fmt::format("{}", fmt::join(replaced, ","));
  return fmt::format(
      fmt::runtime(kStageLine), stage.at("stage").get<size_t>() + 1, layers.empty() ? "-" : layers,
      stage.at("steps").get<size_t>(), ppl(stage.at("before")),
      stage.contains("replaced") ? ppl(stage.at("replaced")) : "-", ppl(stage.at("tuned")),
      judged(stage.at("tuned")), stage.contains("control") ? ppl(stage.at("control")) : "-");
}

std::string linearize_table(const json& result) {
  std::string text = "perplexity on the test text\n" + linearize_table_header();
  for (const json& stage : result.at("stages")) text += linearize_table_line(stage);
  for (const char* name : {"test", "second"}) {
    if (!result.at("held_out").contains(name)) continue;
    const json& about = result.at("held_out").at(name);
    text += fmt::format("\n{} text, {:.0f} predictions in {} windows\n", name,
                        about.at("predictions").get<double>(), about.at("windows").dump());
    text += fmt::format("{:<20} {:>9}  {:<32} {:<32} {:>8} {:>10}\n", "model", "ppl",
                        "against the original", "against the control", "linear", "MLP FLOPs");
    for (const json& model : result.at("models")) {
      const json& figures = model.at(name);
      std::string linear = "-", flops = "-";
      if (figures.contains("pct_linear")) {
        linear = fmt::format("{:.1f} %", figures.at("pct_linear").get<double>());
        flops = fmt::format("{:.1f} %", figures.at("mlp_flops_pct").get<double>());
      }
      text += fmt::format(
          "{:<20} {:>9}  {:<32} {:<32} {:>8} {:>10}\n", model.at("name").get<std::string>(),
          ppl(figures), figures.contains("delta_ppl_pct") ? judged(figures) : "-",
          figures.contains("against_control") ? judged(figures.at("against_control")) : "-", linear,
          flops);
    }
  }
  return text;
}

}  // namespace halflin
