// An analysis for the terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halflin {

// A table with a line a layer, then the statements with their verdicts.
std::string analysis_summary(const nlohmann::json& result);
// The table's header, and one layer's line.
std::string analysis_header();
std::string analysis_line(const nlohmann::json& layer);

}  // namespace halflin
