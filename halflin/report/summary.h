// A report in sentences.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "halflin/report/run.h"

namespace halflin {

// What the figures say, in a few sentences for each run.
std::vector<std::string> summary(const ReportRun& run);

// Warnings about the comparison itself: other texts, other models, partial runs.
std::vector<std::string> cautions(std::span<const ReportRun> runs);

}  // namespace halflin
