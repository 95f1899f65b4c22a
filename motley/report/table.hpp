// Aligned tables and text for terminals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace motley {

enum class Align { left, right };

// Columns as wide as their content, two spaces apart; UTF-8 aware.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> cells);  // missing cells are empty
  bool empty() const { return rows_.empty(); }
  // Every line begins with `indent` and ends without trailing spaces.
  std::string render(std::string_view indent = "  ") const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns a terminal gives to this text: code points, not bytes.
std::size_t display_width(std::string_view text);

// "42%" from 0.42.
std::string percent(double share);

}  // namespace motley
