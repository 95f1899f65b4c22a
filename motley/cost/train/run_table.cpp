#include "motley/cost/train/run_table.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr const char* readme = "the README of data/training says what the columns hold";

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

const std::string& RunRow::text(const std::string& column) const {
  const auto found = cells.find(column);
  if (found == cells.end()) throw input_error(fmt::format("{}: no column \"{}\"", place, column), readme);
  return found->second;
}

double RunRow::number(const std::string& column) const {
  const std::string& cell = text(column);
  std::size_t read = 0;
  double value = NAN;
  try {
    value = std::stod(cell, &read);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read == 0 || read != cell.size() || !std::isfinite(value))
    throw input_error(fmt::format("{}: {} = \"{}\" is not a number", place, column, cell),
                      "give a number, as in 0.25 or 3e-4");
  return value;
}

std::int64_t RunRow::count(const std::string& column) const {
  const double value = number(column);
  if (value < 1 || value > 1e9 || value != std::floor(value))
    throw input_error(fmt::format("{}: {} = {} is not a whole number from 1", place, column, value), readme);
  return static_cast<std::int64_t>(value);
}

std::vector<RunRow> read_run_table(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file)
    throw input_error(fmt::format("cannot read {}", path.string()),
                      "name the folder of the tables, such as data/training of the source tree");
  std::vector<RunRow> rows;
  std::vector<std::string> header;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto cells = split(line, ',');
    if (number == 1) {
      header = cells;
      continue;
    }
    RunRow& row = rows.emplace_back(RunRow{.place = fmt::format("{}:{}", path.string(), number), .cells = {}});
    if (cells.size() != header.size())
      throw input_error(fmt::format("{}: {} cells under {} columns", row.place, cells.size(), header.size()),
                        "give each line one cell per name of the first line, comma-separated");
    for (std::size_t i = 0; i < cells.size(); ++i) row.cells[header[i]] = cells[i];
  }
  return rows;
}

}  // namespace motley
