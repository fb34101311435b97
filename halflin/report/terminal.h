// What the terminal's tables share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halflin {

// "+1.62 %"; from 1000 on without decimals.
std::string percent(double value);
// "[+1.10 %, +2.05 %]": the ends of a change of perplexity.
std::string interval(const nlohmann::json& figure);
// "+1.62 % [+1.10 %, +2.05 %]".
std::string change(const nlohmann::json& figure);
// A share in [0, 1] as 20 characters.
std::string bar(double share);

}  // namespace halflin
