#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halflin {

// An allocation's result (measure/allocate.h) as tables for the terminal: which layers are routed
// how often, and each price's cost and saving, beside its controls.
std::string allocation_table(const nlohmann::json& result);

}  // namespace halflin
