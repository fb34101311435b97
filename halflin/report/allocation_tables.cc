#include "halflin/report/allocation_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/json.h"
#include "halflin/mlp/allocation.h"
#include "halflin/report/figures.h"

namespace halflin {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

double tokens_per_s(const json& speed) { return number(speed.at("tokens_per_s"), "median"); }

json read_measured_allocation(const fs::path& path, std::span<const ReportRun> runs) {
  const Allocation allocation = load_allocation(path);
  const json* kind = find_member(allocation.metadata, "kind");
  if (kind == nullptr || *kind != json("allocation")) {
    fail("{}: an allocation without prices: expected one that halflin allocate made",
         path.string());
  }
  const bool known = std::any_of(runs.begin(), runs.end(), [&](const ReportRun& run) {
    return run.header().at("model").at("sha256") == json(allocation.model.sha256);
  });
  if (!known) {
    fail("{}: made for the model {}, and {} measured {}", path.string(), allocation.model.name,
         runs.front().directory.string(),
         runs.front().header().at("model").at("name").get<std::string>());
  }
  return allocation.metadata;
}

json read_timing(const fs::path& path) {
  json timing = parse_json(read_file(path), path.string());
  if (find_member(timing, "speedup") == nullptr) {
    fail("{}: expected what halflin bench --allocation --json prints, found no \"speedup\"",
         path.string());
  }
  return timing;
}

Table pareto_table(const Budgets& budgets) {
  Table table{
      "pareto",
      "Perplexity against FLOPs",
      "All layers together on the test text. `gates and price`: a token takes the cheapest "
      "path whose predicted harm is below price x cost saved. Controls have the same FLOPs.",
      {{"run", "allocation"},
       {"router", "router"},
       {"price", "price", 3},
       {"flops_saved_pct", "FLOPs saved, %", 2},
       {"bytes_saved_pct", "bytes saved, %", 2},
       {"seconds_saved_pct", "seconds saved, %", 2},
       {"delta_ppl_pct", "ΔPPL, %", 2, true},
       {"at", "chosen"}},
      {}};
  for (const Budgets::Entry& entry : budgets.allocations) {
    for (const json& point : list(entry.result, "pareto")) {
      const bool own = number(point, "price") == number(entry.result, "price");
      const auto add = [&](const std::string& router, const json& from) {
        table.rows.push_back({entry.label, router, number(point, "price"),
                              number(from, "flops_saved_pct"), number(from, "bytes_saved_pct"),
                              number(from, "seconds_saved_pct"), cost(from),
                              std::string(own ? "budget" : "")});
      };
      add("gates and price", point);
      for (const json& control : list(point, "controls")) add(control.at("name"), control);
    }
  }
  return table;
}

Table allocated_table(const Budgets& budgets) {
  Table table{"allocated",
              "What each layer gives",
              "Share of test tokens that take a cheap path, at the budget's price.",
              {{"run", "allocation"},
               {"layer", "layer"},
               {"path", "path"},
               {"kept", "neurons kept or rank"},
               {"rate_pct", "tokens, %", 1}},
              {}};
  for (const Budgets::Entry& entry : budgets.allocations) {
    for (const json& layer : list(entry.result, "layers")) {
      for (const json& option : list(layer, "options")) {
        const json* kept = find_member(option, option.contains("rank") ? "rank" : "kept");
        table.rows.push_back(
            {entry.label, number(layer, "layer"), option.at("kind").get<std::string>(),
             kept == nullptr ? kNone : kept->get<double>(), 100 * number(option, "rate")});
      }
    }
  }
  return table;
}

Table timing_table(const Budgets& budgets) {
  Table table{"timing",
              "By the clock",
              "The same model with and without the allocation, in turns in one run. The interval "
              "resamples the "
              "repetitions.",
              {{"run", "timing"},
               {"what", "what"},
               {"dense", "tokens/s without", 1},
               {"routed", "tokens/s with", 1},
               {"times", "speed-up", 3},
               {"time_saved_pct", "time saved, %", 1},
               {"counted_saved_pct", "FLOPs (prompt) or bytes (tokens) saved, %", 1}},
              {}};
  for (const Budgets::Entry& entry : budgets.timings) {
    for (const auto& [key, name] :
         {std::pair("prefill", "prompt"), std::pair("decode", "one by one")}) {
      const json& gain = entry.result.at("speedup").at(key);
      table.rows.push_back({entry.label, std::string(name),
                            tokens_per_s(entry.result.at("dense").at(key)),
                            tokens_per_s(entry.result.at(key)), figure(gain, "times", ""),
                            number(gain, "time_saved_pct"), number(gain, "counted_saved_pct")});
    }
  }
  return table;
}

}  // namespace

Budgets read_budgets(std::span<const fs::path> allocations, std::span<const fs::path> timings,
                     std::span<const ReportRun> runs) {
  Budgets budgets;
  for (const fs::path& path : allocations) {
    budgets.allocations.push_back({path.stem().string(), read_measured_allocation(path, runs)});
  }
  for (const fs::path& path : timings) {
    budgets.timings.push_back({path.stem().string(), read_timing(path)});
  }
  return budgets;
}

std::vector<Table> allocation_tables(const Budgets& budgets) {
  std::vector<Table> tables;
  for (Table table : {pareto_table(budgets), allocated_table(budgets), timing_table(budgets)}) {
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace halflin
