// The tables of a report that come from `halflin allocate` and `halflin bench --allocation`.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "halflin/report/run.h"
#include "halflin/report/table.h"

namespace halflin {

// What was found beside the runs. Labels are the files' names without extension.
struct Budgets {
  struct Entry {
    std::string label;
    nlohmann::json result;
  };
  std::vector<Entry> allocations;  // the metadata of allocation files
  std::vector<Entry> timings;      // what `halflin bench --json` printed
};

// Throws Error where a file is no allocation of `halflin allocate`, or none of `runs` is of the
// model that it is for (both are named), or a timing compares nothing.
Budgets read_budgets(std::span<const std::filesystem::path> allocations,
                     std::span<const std::filesystem::path> timings,
                     std::span<const ReportRun> runs);

// In order: pareto, allocated, timing. Tables without rows are left out.
std::vector<Table> allocation_tables(const Budgets& budgets);

}  // namespace halflin
