// What arXiv 2603.03459 states, against an analysis' figures.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace halflin {

// One object a statement: {"id", "statement", "published", "measured", "value", "ci_lo", "ci_hi",
// "layers", "rule", "verdict", "layers_hold", "layers_fail"}. The figure is the mean over the
// layers that have one. Its interval's ends are the means of the layers' ends: layers share their
// windows and their errors with them, so averaging narrows nothing, and this is exact where they go
// together and too wide where they do not. `verdict`, from the interval alone:
//   holds           the whole interval agrees with the statement (its rule says how)
//   does not hold   the whole interval contradicts it
//   undecided       neither; or too few windows, types, layers; or not measured by an analysis
// `layers_hold` and `layers_fail` apply the same rule layer by layer.
nlohmann::json judge_statements(const std::vector<nlohmann::json>& layers);

}  // namespace halflin
