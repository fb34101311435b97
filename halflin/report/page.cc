#include "halflin/report/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "halflin/base/error.h"
#include "halflin/report/assets.h"
#include "halflin/report/encode.h"
#include "halflin/report/summary.h"

namespace halflin {

using nlohmann::json;

namespace {

std::string title(std::span<const ReportRun> runs) {
  std::vector<std::string> labels;
  for (const ReportRun& run : runs) labels.push_back(run.label);
  return fmt::format("{}", fmt::join(labels, " · "));
}

// Replaces each {{name}} of the template. What is put in is not looked at again.
std::string fill(std::string_view page, const std::map<std::string_view, std::string_view>& parts) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t open = page.find("{{", at);
    out += page.substr(at, open - at);
    if (open == page.npos) return out;
    const size_t close = page.find("}}", open);
    out += parts.at(page.substr(open + 2, close - open - 2));
    at = close + 2;
  }
}

json run_json(const ReportRun& run) {
  const json& header = run.header();
  return {{"label", run.label},
          {"summary", summary(run)},
          {"sweep", run.has_sweep()},
          {"extent", extent(header)},
          {"complete", header.at("layers").size() >= header.at("settings").at("layers").size()}};
}

}  // namespace

bool has_charts() { return !assets::chart_js().empty(); }

std::string report_page(std::span<const ReportRun> runs, std::span<const Table> tables,
                        std::span<const TokenBytes> bytes_of) {
  if (!has_charts()) {
    fail(
        "this build of halflin has no charting library, so it writes no HTML: install "
        "libjs-chart.js and build again, or use --markdown or --csv");
  }
  json data = {{"title", title(runs)},  {"halflin", HALFLIN_VERSION}, {"cautions", cautions(runs)},
               {"runs", json::array()}, {"tables", json::array()},    {"maps", json::array()}};
  for (const ReportRun& run : runs) data["runs"].push_back(run_json(run));
  for (const Table& table : tables) data["tables"].push_back(to_json(table));
  size_t per_token = 0;  // bytes for one token of each run
  for (const ReportRun& run : runs) {
    if (run.has_tokens()) per_token += token_map_bytes_per_token(run);
  }
  for (size_t r = 0; r < runs.size(); ++r) {
    if (!runs[r].has_tokens()) continue;
    data["maps"].push_back(token_map(runs[r], kTokenMapBytes / per_token, bytes_of[r]));
  }
  const std::string heading = escape_html(title(runs));
  const std::string embedded = script_json(data);
  return fill(assets::page_html(), {{"title", heading},
                                    {"style", assets::style_css()},
                                    {"licence", assets::chart_licence()},
                                    {"chart", assets::chart_js()},
                                    {"data", embedded},
                                    {"base_js", assets::base_js()},
                                    {"charts_js", assets::charts_js()},
                                    {"tokens_js", assets::tokens_js()},
                                    {"analysis_js", assets::analysis_js()},
                                    {"allocation_js", assets::allocation_js()},
                                    {"report_js", assets::report_js()}});
}

std::string report_markdown(std::span<const ReportRun> runs, std::span<const Table> tables) {
  std::string out = fmt::format("# {}\n\n", escape_markdown(title(runs)));
  for (const ReportRun& run : runs) {
    const std::vector<std::string> sentences = summary(run);
    out += fmt::format("**{}** ({})\n\n", escape_markdown(run.label), extent(run.header()));
    for (const std::string& sentence : sentences) out += sentence + "\n";
    out += "\n";
  }
  for (const std::string& caution : cautions(runs)) {
    out += fmt::format("> {}\n\n", escape_markdown(caution));
  }
  for (const Table& table : tables) out += markdown(table);
  out.pop_back();
  return out;
}

}  // namespace halflin
