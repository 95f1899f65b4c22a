#include "motley/base/proc_value.hpp"

#include <fstream>

namespace motley {

std::optional<std::string> proc_value(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) {
      const auto at = line.find_first_not_of(" \t:", key.size());
      return at == std::string::npos ? "" : line.substr(at);
    }
  return std::nullopt;
}

}  // namespace motley
