// Tables of measured training steps: comma-separated, the names of the columns in the first line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace motley {

// A line of such a file.
struct RunRow {
  std::string place;  // file and line, for messages
  std::map<std::string, std::string> cells;

  // Each throws an input error that names place and column.
  const std::string& text(const std::string& column) const;
  double number(const std::string& column) const;
  std::int64_t count(const std::string& column) const;  // a whole number from 1
};

std::vector<RunRow> read_run_table(const std::filesystem::path& path);

std::vector<std::string> split(const std::string& text, char separator);

}  // namespace motley
