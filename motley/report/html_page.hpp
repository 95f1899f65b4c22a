// A whole document.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motley/report/html.hpp"

namespace motley {

struct PageSection {
  std::string id;
  std::string title;
  Html content;
};
// The whole document, with nothing else to load. Empty sections are left out.
std::string page(std::string_view kind, std::string_view title, const Html& head,
                 const std::vector<PageSection>& sections);

}  // namespace motley
