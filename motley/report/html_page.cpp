#include "motley/report/html_page.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>

namespace motley {

std::string_view page_css();  // page.css

namespace {

// What tells filled boxes apart without colours.
Html pattern_definitions() {
  // Per cause: its colour, and strokes of its own on an 8 x 8 tile. The first is plain.
  static constexpr const char* strokes[] = {"", "M-2 2L2 -2M0 8L8 0M6 10L10 6", "M0 4H8", "M4 0V8",
                                            "M-2 6L2 10M0 0L8 8M6 -2L10 2"};
  Html patterns;
  for (std::size_t i = 0; i < std::size(strokes); ++i)
    patterns +=
        tag("pattern",
            {{"id", fmt::format("fill{}", i)}, {"width", "8"}, {"height", "8"}, {"patternUnits", "userSpaceOnUse"}},
            {tag("rect", {{"class", fmt::format("ground{}", i)}, {"width", "8"}, {"height", "8"}}),
             tag("path", {{"class", "stroke"}, {"d", strokes[i]}})});
  return tag("svg", {{"class", "definitions"}, {"aria-hidden", "true"}}, tag("defs", {}, patterns));
}

}  // namespace

std::string page(std::string_view kind, std::string_view title, const Html& head,
                 const std::vector<PageSection>& sections) {
  Html links, body;
  for (const PageSection& part : sections) {
    if (part.content.empty()) continue;
    links += tag("a", {{"href", "#" + part.id}}, part.title);
    body += section(part.id, part.title, part.content);
  }
  const Html whole =
      tag("main", {},
          {pattern_definitions(), tag("header", {}, {paragraph("kind", kind), tag("h1", {}, title), head}),
           tag("nav", {{"aria-label", "On this page"}}, links), body});
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}\n</body>\n</html>\n",
      Html(title).markup(), page_css(), whole.markup());
}

}  // namespace motley
