#include "halflin/report/allocation_table.h"

#include <fmt/format.h>

#include "halflin/report/terminal.h"

namespace halflin {

using nlohmann::json;

namespace {

std::string layer_line(const json& layer) {
  const double rate = layer.at("rate");
  std::string line =
      fmt::format("{:>5}  {:>5.1f} %  {}", layer.at("layer").get<size_t>(), 100 * rate, bar(rate));
  for (const json& option : layer.at("options")) {
    line += fmt::format("  {}", option.at("kind").get<std::string>());
    if (option.contains("kept")) line += fmt::format(" {}", option.at("kept").get<size_t>());
    if (option.contains("rank")) line += fmt::format(" {}", option.at("rank").get<size_t>());
    line += fmt::format(" {:.1f} %", 100 * option.at("rate").get<double>());
  }
  return line + "\n";
}

}  // namespace

std::string allocation_table(const json& result) {
  std::string out = fmt::format("{:>5}  {:>7}  {}\n", "layer", "routed",
                                "tokens that take a cheap path, and which");
  for (const json& layer : result.at("layers")) out += layer_line(layer);
  out += fmt::format("\n{:>9}  {:>7}  {:>7}  {:<32}  {}\n", "price", "FLOPs", "bytes",
                     "ΔPPL, 95 % interval", "");
  for (const json& point : result.at("pareto")) {
    const bool own = point.at("price") == result.at("price");
    out += fmt::format("{:>9.4g}  {:>5.2f} %  {:>5.2f} %  {:<31}  {}\n",
                       point.at("price").get<double>(), -point.at("flops_saved_pct").get<double>(),
                       -point.at("bytes_saved_pct").get<double>(), change(point),
                       own ? "<- the budget's" : "");
    if (point.contains("decode_time_saved_pct")) {
      out += fmt::format("{:>9}  by the clock: {:.2f} % of a prompt's time, {:.2f} % one by one\n",
                         "", point.at("prefill_time_saved_pct").get<double>(),
                         point.at("decode_time_saved_pct").get<double>());
    }
    for (const json& control : point.value("controls", json::array())) {
      out += fmt::format("{:>9}  {:>5.2f} %  {:>7}  {:<31}  {}\n", "",
                         -control.at("flops_saved_pct").get<double>(), "", change(control),
                         control.at("name").get<std::string>());
    }
  }
  const json& test = result.at("test");
  const json& calibration = result.at("calibration");
  if (const auto before = calibration.find("before_healing"); before != calibration.end()) {
    const json& after = calibration.at("fits").at("healed");
    const json& last = after.at("tried").back();
    const auto saved = [](const json& point) {
      return fmt::format("{:.2f} % at {}", point.at("flops_saved_pct").get<double>(),
                         percent(point.at("delta_ppl_pct")));
    };
    const bool within = after.at("flops_saved_pct") > 0;
    out += fmt::format(
        "\nhealing, on calibration text: one path a layer saved {} of perplexity; healed, {}{}\n",
        saved(*before), within ? saved(after) : saved(last) + ", at no price within the budget",
        result.at("fit") == "healed" ? "" : ": not kept");
  }
  if (const auto against = test.find("against_control"); against != test.end()) {
    out += fmt::format("against the model healed without paths: {}\n", change(*against));
  }
  out += fmt::format(
      "\nbudget {:+g} %: calibrated {}, test {} over {} predictions; saves {:.2f} % of all FLOPs\n",
      result.at("budget_pct").get<double>(), percent(calibration.at("delta_ppl_pct")), change(test),
      test.at("predictions").get<size_t>(), test.at("flops_saved_pct").get<double>());
  return out;
}

}  // namespace halflin
