// The report as one HTML file that needs nothing else.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "halflin/report/run.h"
#include "halflin/report/table.h"
#include "halflin/report/token_map.h"

namespace halflin {

// All token maps of a page together take at most about this much of it; beyond it, each shows the
// first part of its text.
inline constexpr size_t kTokenMapBytes = 24'000'000;

// Whether the build found a charting library; report_page throws Error without one.
bool has_charts();

// `bytes_of[r]` belongs to runs[r]. No request leaves the page: its content policy forbids any.
std::string report_page(std::span<const ReportRun> runs, std::span<const Table> tables,
                        std::span<const TokenBytes> bytes_of);

// The same without the token maps, for files and terminals.
std::string report_markdown(std::span<const ReportRun> runs, std::span<const Table> tables);

}  // namespace halflin
