// Aligned tables and text for terminals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace motley {

// Columns as wide as their content, two spaces apart; UTF-8 aware. As on pages, columns whose title begins with '>'
// hold figures and are aligned to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> titles);

  void add(std::vector<std::string> cells);  // missing cells are empty
  bool empty() const { return rows_.empty(); }
  // Every line begins with `indent` and ends without trailing spaces.
  std::string render(std::string_view indent = "  ") const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> at_right_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns a terminal gives to this text: code points, not bytes.
std::size_t display_width(std::string_view text);

// "42%" from 0.42.
std::string percent(double share);

}  // namespace motley
