// Reading figures from result files into a report's cells. What is missing is NaN or empty.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "halflin/report/table.h"

namespace halflin {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number(const nlohmann::json& object, const std::string& key);
// The ends of its interval are `prefix` + "ci_lo" and "ci_hi".
Figure figure(const nlohmann::json& object, const std::string& key, const std::string& prefix);
// A change of perplexity.
Figure cost(const nlohmann::json& variant);
std::string text(const nlohmann::json& object, const std::string& key);
const nlohmann::json& list(const nlohmann::json& object, const std::string& key);

}  // namespace halflin
