// Cluster files as people read them: scalars first, then tables, what is inside a table's values on one line.
#include "motley/cluster/write_cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace motley {
namespace {

std::string inline_toml(const Value& value) {
  if (value.is_array()) {
    std::string items;
    for (const Value& item : value.as_array()) items += (items.empty() ? "" : ", ") + inline_toml(item);
    return "[" + items + "]";
  }
  if (!value.is_object()) return to_json(value);  // strings and numbers look alike in both
  std::string members;
  for (const auto& [key, member] : value.as_object())
    members += fmt::format("{}{} = {}", members.empty() ? "" : ", ", key, inline_toml(member));
  return "{ " + members + " }";
}

std::string table_toml(const Value& table) {
  std::string lines;
  for (const auto& [key, value] : table.as_object()) lines += fmt::format("{} = {}\n", key, inline_toml(value));
  return lines;
}

bool is_list_of_tables(const Value& value) {
  return value.is_array() && !value.as_array().empty() && value.as_array().front().is_object();
}

}  // namespace

std::string cluster_toml(const ClusterDescription& description, std::string_view heading) {
  std::string text, tables;
  while (!heading.empty()) {
    const auto end = std::min(heading.find('\n'), heading.size());
    text += fmt::format("# {}\n", heading.substr(0, end));
    heading.remove_prefix(std::min(end + 1, heading.size()));
  }
  const Value document = write(description);
  for (const auto& [key, value] : document.as_object()) {
    if (is_list_of_tables(value))
      for (const Value& item : value.as_array()) tables += fmt::format("\n[[{}]]\n{}", key, table_toml(item));
    else if (value.is_object())
      tables += fmt::format("\n[{}]\n{}", key, table_toml(value));
    else
      text += fmt::format("{} = {}\n", key, inline_toml(value));
  }
  return text + tables;
}

}  // namespace motley
