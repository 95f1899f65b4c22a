// Reading a cluster file: matrices that stand in files of their own are put in place first.
#include <fmt/format.h>

#include <charconv>

#include "motley/cluster/cluster.hpp"

namespace motley {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
  const auto first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

// Rows of numbers. What stands on the diagonal is not read.
Value read_matrix_csv(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  Value rows = Value::array();
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    if (line.empty()) continue;
    const std::size_t row = rows.as_array().size();
    Value numbers = Value::array();
    for (std::size_t cell_begin = 0; cell_begin <= line.size();) {
      const std::size_t cell_end = std::min(line.find(',', cell_begin), line.size());
      const std::string_view cell = trim(line.substr(cell_begin, cell_end - cell_begin));
      cell_begin = cell_end + 1;
      const std::size_t column = numbers.as_array().size();
      double number = 0;
      const auto [rest, status] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
      if (column != row && (status != std::errc() || rest != cell.data() + cell.size()))
        throw input_error(
            fmt::format("{}:{}: column {}: \"{}\" is not a number", path.string(), line_number, column + 1, cell),
            "write numbers separated by commas, without a header");
      numbers.push_back(column == row ? 0.0 : number);
    }
    rows.push_back(std::move(numbers));
  }
  return rows;
}

Value* find_member(Value* value, std::string_view key) {
  if (!value || !value->is_object()) return nullptr;
  for (auto& [name, child] : value->as_object())
    if (name == key) return &child;
  return nullptr;
}

void inline_matrices(Value& document, const std::filesystem::path& folder) {
  Value* matrix = find_member(find_member(&document, "network"), "matrix");
  for (const std::string_view key : {"latency_ms", "bandwidth_gbit_s"})
    if (Value* entry = find_member(matrix, key); entry && entry->is_string()) {
      const Position position = entry->position;
      *entry = read_matrix_csv(folder / entry->as_string());
      entry->position = position;
    }
}

}  // namespace

Cluster read_cluster(const std::filesystem::path& path) {
  Value document = read_document(path);
  inline_matrices(document, path.parent_path());
  return read<Cluster>(document, path.string());
}

}  // namespace motley
