// halflin report: sweeps and analyses as a page, Markdown or CSV.
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/report/allocation_tables.h"
#include "halflin/report/analysis_tables.h"
#include "halflin/report/page.h"
#include "halflin/report/run.h"
#include "halflin/report/summary.h"
#include "halflin/report/sweep_tables.h"
#include "halflin/report/table.h"

namespace halflin::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> directories;
  std::vector<std::string> allocations;
  std::vector<std::string> timings;
  std::string html;
  std::string markdown;
  std::string csv;
  std::string model;
  bool json = false;
  bool quiet = false;
};

// The tokenizer of a run's model: --model, which must be that model, or the one that run.json
// names.
std::shared_ptr<Tokenizer> find_tokenizer(const ReportRun& run, const Options& options) {
  const nlohmann::json& model = run.result.at("model");
  const std::string name =
      options.model.empty() ? model.at("name").get<std::string>() : options.model;
  std::string reason;
  try {
    const Checkpoint checkpoint = read_checkpoint(name);
    const std::string sha256 = sha256_files(checkpoint.file);
    if (sha256 == model.at("sha256").get<std::string>()) {
      return std::make_shared<Tokenizer>(read_tokenizer(checkpoint));
    }
    reason = fmt::format("{}: its model has the sha256 {}, {} has {}", run.directory.string(),
                         model.at("sha256").get<std::string>(), name, sha256);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (!options.model.empty()) throw Error(reason);
  if (!options.quiet) {
    fmt::print(stderr,
               "halflin: warning: the token map shows ids, not text: {}; --model says where the "
               "model is\n",
               reason);
  }
  return nullptr;
}

std::vector<TokenBytes> tokenizers(std::span<const ReportRun> runs, const Options& options) {
  std::map<std::string, std::shared_ptr<Tokenizer>> by_model;
  std::vector<TokenBytes> out(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    if (!runs[r].has_tokens()) continue;
    const std::string sha256 = runs[r].result.at("model").at("sha256");
    if (!by_model.contains(sha256)) by_model[sha256] = find_tokenizer(runs[r], options);
    const std::shared_ptr<Tokenizer> tokenizer = by_model[sha256];
    if (tokenizer == nullptr) continue;
    out[r] = [tokenizer, where = runs[r].directory.string()](int32_t id) {
      if (static_cast<size_t>(id) >= tokenizer->size()) {
        fail("{}/tokens.safetensors: id {}, the tokenizer has ids up to {}", where, id,
             tokenizer->size() - 1);
      }
      return tokenizer->token_bytes(id);
    };
  }
  return out;
}

void write_report(const Options& options) {
  const std::vector<fs::path> directories(options.directories.begin(), options.directories.end());
  const std::vector<ReportRun> runs = read_runs(directories);
  const std::vector<fs::path> allocations(options.allocations.begin(), options.allocations.end());
  const std::vector<fs::path> timings(options.timings.begin(), options.timings.end());
  const Budgets budgets = read_budgets(allocations, timings, runs);
  std::vector<Table> tables = sweep_tables(runs);
  for (Table& table : allocation_tables(budgets)) tables.push_back(std::move(table));
  for (Table& table : analysis_tables(runs)) tables.push_back(std::move(table));
  if (!options.quiet) {
    for (const std::string& caution : cautions(runs)) {
      fmt::print(stderr, "halflin: warning: {}\n", caution);
    }
  }

  nlohmann::json written = nlohmann::json::array();
  const auto write = [&](const fs::path& path, const std::string& contents) {
    write_file_atomically(path, contents);
    written.push_back({{"path", path.string()}, {"bytes", contents.size()}});
  };
  if (!options.html.empty()) {
    write(options.html, report_page(runs, tables, tokenizers(runs, options)));
  }
  if (!options.markdown.empty()) write(options.markdown, report_markdown(runs, tables));
  if (!options.csv.empty()) {
    ensure_writable_directory(options.csv);
    for (const Table& table : tables)
      write(fs::path(options.csv) / (table.id + ".csv"), csv(table));
  }

  if (options.json) {
    nlohmann::json out = {{"written", written}, {"tables", nlohmann::json::array()}};
    for (const Table& table : tables) out["tables"].push_back(to_json(table));
    fmt::print("{}\n", out.dump(2));
  } else if (written.empty()) {
    fmt::print("{}", report_markdown(runs, tables));
  } else {
    for (const nlohmann::json& file : written) {
      fmt::print("{}  {:.2f} MB\n", file.at("path").get<std::string>(),
                 file.at("bytes").get<double>() / 1e6);
    }
  }
}

void run(const Options& options) {
  try {
    write_report(options);
  } catch (const nlohmann::json::exception& error) {
    // Of the right schema, yet without a key or with a value of another type.
    fail("{}: no result as halflin writes it: {}", fmt::join(options.directories, ", "),
         error.what());
  }
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("report", "Results as a page to look at, as Markdown, as CSV");
  const auto options = std::make_shared<Options>();
  command
      ->add_option("DIR", options->directories,
                   "directories of sweeps or analyses; several are compared")
      ->required();
  command->add_option(
      "--allocation", options->allocations,
      "also the Pareto table of this file that halflin allocate made (more than one may be given)");
  command->add_option("--bench", options->timings,
                      "also the speed-up in this file of what halflin bench --allocation --json "
                      "printed (more than one may be given)");
  command->add_option("--html", options->html, "write a self-contained page to this file");
  command->add_option("--markdown", options->markdown,
                      "write the tables as Markdown to this file (without any output option: to "
                      "standard output)");
  command->add_option("--csv", options->csv, "write each table as a CSV file into this directory");
  command->add_option("--model", options->model,
                      "where the model is now, for the text of its tokens (default: as the sweep "
                      "had it)");
  command->add_flag("--json", options->json, "print the tables and the files written as JSON");
  command->add_flag("--quiet", options->quiet, "no warnings on stderr");
  command->footer("Example:\n  halflin report results other-results --html report.html");
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
