// Markup for pages. Text becomes markup by being escaped, and in no other way: what a plan's author wrote stays text.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace motley {

class Html {
 public:
  Html() = default;
  Html(std::string_view text);  // escaped
  Html(const std::string& text) : Html(std::string_view(text)) {}
  Html(const char* text) : Html(std::string_view(text)) {}
  Html(std::initializer_list<Html> parts);

  Html& operator+=(const Html& more);
  bool empty() const { return markup_.empty(); }
  const std::string& markup() const { return markup_; }

 private:
  friend Html tag(std::string_view, const std::vector<std::pair<std::string_view, std::string>>&, const Html&);
  std::string markup_;
};

using Attributes = std::vector<std::pair<std::string_view, std::string>>;

// Names of tags and attributes are the program's own; values of attributes are escaped.
Html tag(std::string_view name, const Attributes& attributes, const Html& content = {});

Html div(std::string_view css_class, const Html& content);
Html span(std::string_view css_class, const Html& content);
Html paragraph(std::string_view css_class, const Html& content);

// A heading with an anchor and what stands below it.
Html section(std::string_view id, std::string_view title, const Html& content);

// Folded until it is opened, which needs no script.
Html details(const Html& summary, const Html& content);

// Columns whose title begins with '>' hold figures and are aligned to the right. Scrolls in a box of its own where the
// page is narrow.
Html table(const std::vector<std::string>& titles, const std::vector<std::vector<Html>>& rows);

// A figure worth a large print.
struct PageFigure {
  std::string label;
  std::string value;
  std::string note = {};
};
Html figures(const std::vector<PageFigure>& list);

}  // namespace motley
