// report/: results for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halflin {

// A sweep's result as a table for the terminal: a line a layer with R², the all-linear cost and its
// interval, the best gate, and a bar of the tokens it lets through.
std::string sweep_table(const nlohmann::json& result);
// The header, and one layer's line.
std::string sweep_table_header();
std::string sweep_table_line(const nlohmann::json& layer);

}  // namespace halflin
