#include "halflin/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace halflin {

using nlohmann::json;

namespace {

std::string format_number(double value, const Column& column) {
  if (std::isnan(value)) return "";
  const int digits = std::abs(value) >= 1000 ? 0 : column.digits;
  return column.sign ? fmt::format("{:+.{}f}", value, digits)
                     : fmt::format("{:.{}f}", value, digits);
}

std::string csv_text(std::string text) {
  if (!text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos) {
    text.insert(text.begin(), '\'');
  }
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

// JSON has no NaN and no infinity.
json json_number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

bool is_figure(const Table& table, size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<Cell>& row) {
    return std::holds_alternative<Figure>(row[column]);
  });
}

bool is_text(const Table& table, size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<Cell>& row) {
    return std::holds_alternative<std::string>(row[column]);
  });
}

}  // namespace

std::string format_cell(const Cell& cell, const Column& column) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* value = std::get_if<double>(&cell)) return format_number(*value, column);
  const auto& figure = std::get<Figure>(cell);
  if (std::isnan(figure.estimate)) return "";
  std::string out = format_number(figure.estimate, column);
  if (!std::isnan(figure.lo) && !std::isnan(figure.hi)) {
    out += fmt::format(" [{}, {}]", format_number(figure.lo, column),
                       format_number(figure.hi, column));
  }
  return out;
}

std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      if (std::string_view("|\\`*_[]~#").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string markdown(const Table& table) {
  std::string out = fmt::format("## {}\n\n", escape_markdown(table.title));
  if (!table.note.empty()) out += escape_markdown(table.note) + "\n\n";
  std::string rule;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    out += fmt::format("| {} ", escape_markdown(table.columns[c].title));
    rule += is_text(table, c) ? "| :-- " : "| --: ";
  }
  out += "|\n" + rule + "|\n";
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string text = format_cell(row[c], table.columns[c]);
      // Only what came from elsewhere needs escaping; figures keep their brackets.
      out += fmt::format(
          "| {} ", std::holds_alternative<std::string>(row[c]) ? escape_markdown(text) : text);
    }
    out += "|\n";
  }
  return out + "\n";
}

std::string csv(const Table& table) {
  std::vector<bool> figures;
  std::string out;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    figures.push_back(is_figure(table, c));
    const std::string& key = table.columns[c].key;
    out += (c == 0 ? "" : ",") + csv_text(key);
    if (figures[c]) out += fmt::format(",{0}_lo,{0}_hi", key);
  }
  out += "\r\n";
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      if (c != 0) out += ",";
      if (const auto* text = std::get_if<std::string>(&row[c])) {
        out += csv_text(*text);
      } else if (const auto* figure = std::get_if<Figure>(&row[c])) {
        out += fmt::format("{},{},{}", csv_number(figure->estimate), csv_number(figure->lo),
                           csv_number(figure->hi));
        continue;
      } else {
        out += csv_number(std::get<double>(row[c]));
      }
      if (figures[c]) out += ",,";
    }
    out += "\r\n";
  }
  return out;
}

json to_json(const Table& table) {
  json columns = json::array();
  for (const Column& column : table.columns) {
    columns.push_back({{"key", column.key},
                       {"title", column.title},
                       {"digits", column.digits},
                       {"sign", column.sign}});
  }
  json rows = json::array();
  for (const std::vector<Cell>& row : table.rows) {
    json cells = json::array();
    for (const Cell& cell : row) {
      if (const auto* text = std::get_if<std::string>(&cell)) {
        cells.push_back(*text);
      } else if (const auto* figure = std::get_if<Figure>(&cell)) {
        cells.push_back(std::isnan(figure->estimate)
                            ? json(nullptr)
                            : json::array({json_number(figure->estimate), json_number(figure->lo),
                                           json_number(figure->hi)}));
      } else {
        cells.push_back(json_number(std::get<double>(cell)));
      }
    }
    rows.push_back(std::move(cells));
  }
  return {{"id", table.id},
          {"title", table.title},
          {"note", table.note},
          {"columns", std::move(columns)},
          {"rows", std::move(rows)}};
}

}  // namespace halflin
