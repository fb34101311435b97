// What `halflin linearize` prints: the stages, and the models in the end.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halflin {

// `stage` as stage_result gives it.
std::string linearize_table_header();
std::string linearize_table_line(const nlohmann::json& stage);

// A whole result.json of kind "linearize".
std::string linearize_table(const nlohmann::json& result);

}  // namespace halflin
