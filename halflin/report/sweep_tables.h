// The tables of a report, made from what sweeps left behind.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "halflin/report/run.h"
#include "halflin/report/table.h"

namespace halflin {

// In order: runs, layers, verdicts, routing, replacements, folding, delta. Tables without rows are
// left out. The first column of each is the run's label.
std::vector<Table> sweep_tables(std::span<const ReportRun> runs);

// "0-3, 7": which of `layers` (rising) those are.
std::string layer_ranges(const std::vector<size_t>& layers);

// One layer's delta: quantiles at 1, 5, 25, 50, 75, 95 and 99 %, and the share of all harm (the sum
// of positive deltas) that the worst 1, 5 and 10 % of the tokens do. NaN are left out.
struct DeltaShape {
  size_t tokens = 0;
  std::vector<double> quantiles;  // [7]
  std::vector<double> harm_pct;   // [3]
};
DeltaShape delta_shape(std::span<const float> delta);

}  // namespace halflin
