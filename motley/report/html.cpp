#include "motley/report/html.hpp"

namespace motley {

namespace {

void escape(std::string& out, std::string_view text) {
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7F)
      out += "\xEF\xBF\xBD";  // a control character, which no document may hold
    else
      out += c;
  }
}

}  // namespace

Html::Html(std::string_view text) { escape(markup_, text); }

Html::Html(std::initializer_list<Html> parts) {
  for (const Html& part : parts) markup_ += part.markup_;
}

Html& Html::operator+=(const Html& more) {
  markup_ += more.markup_;
  return *this;
}

Html tag(std::string_view name, const Attributes& attributes, const Html& content) {
  Html made;
  std::string& out = made.markup_;
  out.append("<").append(name);
  for (const auto& [key, value] : attributes) {
    if (value.empty() && key == "class") continue;
    out.append(" ").append(key).append("=\"");
    escape(out, value);
    out += '"';
  }
  out.append(">").append(content.markup_).append("</").append(name).append(">");
  return made;
}

Html div(std::string_view css_class, const Html& content) {
  return tag("div", {{"class", std::string(css_class)}}, content);
}
Html span(std::string_view css_class, const Html& content) {
  return tag("span", {{"class", std::string(css_class)}}, content);
}
Html paragraph(std::string_view css_class, const Html& content) {
  return tag("p", {{"class", std::string(css_class)}}, content);
}

Html section(std::string_view id, std::string_view title, const Html& content) {
  const std::string anchor(id), heading = anchor + "-title";
  return tag("section", {{"id", anchor}, {"aria-labelledby", heading}}, {tag("h2", {{"id", heading}}, title), content});
}

Html details(const Html& summary, const Html& content) {
  return tag("details", {}, {tag("summary", {}, summary), content});
}

Html table(const std::vector<std::string>& titles, const std::vector<std::vector<Html>>& rows) {
  const auto cell_class = [&](std::size_t column) {
    return std::string(column < titles.size() && titles[column].starts_with('>') ? "n" : "");
  };
  Html head, body;
  bool titled = false;
  for (std::size_t i = 0; i < titles.size(); ++i) {
    const std::string title = titles[i].starts_with('>') ? titles[i].substr(1) : titles[i];
    titled = titled || !title.empty();
    head += tag("th", {{"class", cell_class(i)}, {"scope", "col"}}, title);
  }
  for (const auto& row : rows) {
    Html cells;
    for (std::size_t i = 0; i < row.size(); ++i) cells += tag("td", {{"class", cell_class(i)}}, row[i]);
    body += tag("tr", {}, cells);
  }
  const Html whole = {titled ? tag("thead", {}, tag("tr", {}, head)) : Html(), tag("tbody", {}, body)};
  return tag("div", {{"class", "wide"}, {"tabindex", "0"}}, tag("table", {}, whole));
}

Html figures(const std::vector<PageFigure>& list) {
  Html tiles;
  for (const PageFigure& figure : list)
    tiles += div("tile", {tag("dt", {}, figure.label), tag("dd", {{"class", "value"}}, figure.value),
                          figure.note.empty() ? Html() : tag("dd", {{"class", "note"}}, figure.note)});
  return tag("dl", {{"class", "tiles"}}, tiles);
}

}  // namespace motley
