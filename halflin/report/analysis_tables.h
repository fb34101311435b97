// The tables of a report that come from `halflin analyze`.
#pragma once

#include <span>
#include <vector>

#include "halflin/report/run.h"
#include "halflin/report/table.h"

namespace halflin {

// In order: statements, probes, parts, explained, lists, listed, harm, stability, surface,
// clusters, extremes. Tables without rows are left out. Where an analysis had too few tokens for a
// figure, the cell says "too few" and how many.
std::vector<Table> analysis_tables(std::span<const ReportRun> runs);

}  // namespace halflin
