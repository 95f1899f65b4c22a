#include "motley/comm/authority/machine_name.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/comm/net/handshake.hpp"

namespace motley {
namespace {

constexpr std::string_view default_site = "default";  // of clusters: a link could mean either

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
bool is_of_name(char c) { return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.'; }

bool is_reserved(std::string_view name) {
  const std::string folded = folded_machine_name(name);
  return folded == default_site || folded == coordinator_name;
}

}  // namespace

std::string folded_machine_name(std::string_view name) {
  std::string folded(name);
  for (char& c : folded)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return folded;
}

std::string machine_name_objection(std::string_view name) {
  if (name.empty() || name.size() > longest_machine_name || !is_letter_or_digit(name.front()) ||
      !std::ranges::all_of(name, is_of_name))
    return fmt::format(
        "a machine cannot be called {:?}: a name has 1 to {} letters, digits, `-`, `_` and `.`, and begins with a "
        "letter or digit",
        name.substr(0, longest_machine_name + 1), longest_machine_name);
  if (is_reserved(name)) return fmt::format("a machine cannot be called \"{}\": the name is reserved", name);
  return {};
}

std::string machine_name_of_host(std::string_view host) {
  std::string name(host.substr(0, std::min(host.find('.'), longest_machine_name)));
  std::ranges::replace_if(
      name, [](char c) { return !is_of_name(c); }, '-');
  name.erase(name.begin(), std::ranges::find_if(name, is_letter_or_digit));
  return name.empty() ? "machine" : is_reserved(name) ? name + "-1" : name;
}

}  // namespace motley
