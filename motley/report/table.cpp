#include "motley/report/table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"

namespace motley {

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

Table::Table(std::vector<std::string> titles) : titles_(std::move(titles)) {
  for (std::string& title : titles_) {
    at_right_.push_back(title.starts_with('>'));
    if (at_right_.back()) title.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> cells) {
  MOTLEY_CHECK(cells.size() <= titles_.size());
  for (std::string& cell : cells) cell = printable(cell);  // a row is one line, whatever the names in it
  cells.resize(titles_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::render(std::string_view indent) const {
  std::vector<std::size_t> widths(titles_.size());
  const auto measure = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], display_width(cells[i]));
  };
  measure(titles_);
  for (const auto& row : rows_) measure(row);

  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(indent);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - display_width(cells[i]), ' ');
      text += at_right_[i] ? padding + cells[i] : cells[i] + padding;
      if (i + 1 < cells.size()) text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  if (std::any_of(titles_.begin(), titles_.end(), [](const auto& title) { return !title.empty(); })) line(titles_);
  for (const auto& row : rows_) line(row);
  return out;
}

}  // namespace motley
