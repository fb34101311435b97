// Tables of figures: what the page's charts are drawn from, and what --markdown and --csv write.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace halflin {

// A figure and its interval; NaN where there is none.
struct Figure {
  double estimate = std::numeric_limits<double>::quiet_NaN();
  double lo = std::numeric_limits<double>::quiet_NaN();
  double hi = std::numeric_limits<double>::quiet_NaN();
};

using Cell = std::variant<std::string, double, Figure>;

struct Column {
  std::string key;    // its name in CSV; a Figure also has key_lo and key_hi
  std::string title;  // with its unit
  int digits = 0;     // after the decimal point
  bool sign = false;  // write + before what is above 0
};

struct Table {
  std::string id;  // names the CSV file
  std::string title;
  std::string note;  // how to read it; may be empty
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // [rows][columns]
};

// "+1.62 [+1.10, +2.05]", "0.54", "" for NaN. From 1000 on without decimals.
std::string format_cell(const Cell& cell, const Column& column);

// A GitHub-flavoured table under a heading; text is escaped, so that none of it becomes markup.
std::string markdown(const Table& table);
std::string escape_markdown(std::string_view text);

// RFC 4180 with a header line; numbers with all their digits, nothing for NaN. A text that a
// spreadsheet would take for a formula is written behind an apostrophe.
std::string csv(const Table& table);

// {"id", "title", "note", "columns": [{"key", "title", "digits", "sign"}], "rows"}, a Figure as
// [estimate, lo, hi], NaN as null.
nlohmann::json to_json(const Table& table);

}  // namespace halflin
