// For tests: is a page well formed, and does it stand alone?
#pragma once

#include <string>
#include <vector>

namespace motley {

// Where tags do not nest; empty where all do. Attributes may hold no '>', which the escaping sees to.
inline std::string nesting_error(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    if (text.compare(at, 2, "<!") == 0) continue;
    const bool closes = text[at + 1] == '/';
    const std::size_t from = at + (closes ? 2 : 1), end = text.find_first_of(" >\n", from);
    if (end == std::string::npos) return "a tag without an end";
    const std::string name = text.substr(from, end - from);
    if (name == "meta") continue;
    if (!closes) {
      open.push_back(name);
      continue;
    }
    if (open.empty() || open.back() != name)
      return "</" + name + "> closes " + (open.empty() ? std::string("nothing") : "<" + open.back() + ">");
    open.pop_back();
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

}  // namespace motley
