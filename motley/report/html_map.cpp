#include "motley/report/html_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr std::size_t places_drawn = 4;  // more make a drawing of crossing lines
constexpr std::size_t places_in_table = 16;

std::string range_text(const std::string& from, const std::string& to) {
  return from == to ? from : from + " \u2013 " + to;
}

// A site; where there is but one, machines that are described together.
struct Place {
  std::string name;
  std::vector<int> machines;
};

std::vector<Place> places_of(const Cluster& cluster) {
  std::set<std::string> sites;
  for (const Machine& machine : cluster.machines) sites.insert(machine.site);
  std::vector<Place> places;
  for (std::size_t i = 0; i < cluster.machines.size(); ++i) {
    const Machine& machine = cluster.machines[i];
    if (machine.devices.empty()) continue;
    const std::string& kind = cluster.description.machines[static_cast<std::size_t>(machine.description)].name;
    const std::string& name = sites.size() > 1 ? machine.site : kind;
    auto place = std::find_if(places.begin(), places.end(), [&](const Place& known) { return known.name == name; });
    if (place == places.end()) place = places.insert(places.end(), {name, {}});
    place->machines.push_back(static_cast<int>(i));
  }
  return places;
}

const Machine& machine_of(const Cluster& cluster, int machine) {
  return cluster.machines[static_cast<std::size_t>(machine)];
}

// Nothing where the link is not described, which is not a mistake as long as no plan needs it.
std::optional<PathSpeed> described_link(const Cluster& cluster, int from, int to) {
  try {
    return cluster.link(from, to);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Between the first devices of different machines.
LinkRange links_between(const Cluster& cluster, const Place& from, const Place& to) {
  LinkRange links;
  for (const int a : from.machines)
    for (const int b : to.machines) {
      if (a == b) continue;
      const int source = machine_of(cluster, a).devices[0], target = machine_of(cluster, b).devices[0];
      if (const auto link = described_link(cluster, source, target)) links.add(*link);
    }
  return links;
}

// Pairs of places between which some pipeline hands over, the smaller number first.
std::set<std::pair<std::size_t, std::size_t>> used_links(const PageLayout& layout, const std::vector<Place>& places) {
  std::map<int, std::size_t> place_of;
  for (std::size_t i = 0; i < places.size(); ++i)
    for (const int machine : places[i].machines) place_of[machine] = i;
  const auto place = [&](const PageHop& hop) {
    const int device = layout.stages[hop.stage].devices.front();
    return place_of.at(layout.cluster->devices[static_cast<std::size_t>(device)].machine);
  };
  std::set<std::pair<std::size_t, std::size_t>> used;
  for (const PagePipeline& pipeline : layout.pipelines)
    for (std::size_t i = 1; i < pipeline.hops.size(); ++i) {
      const auto [a, b] = std::minmax({place(pipeline.hops[i - 1]), place(pipeline.hops[i])});
      if (a != b) used.insert({a, b});
    }
  return used;
}

std::string shortened(const std::string& name, std::size_t most) {
  if (name.size() <= most) return name;
  std::size_t end = most - 1;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not inside a character
  return name.substr(0, end) + "\u2026";
}

// ---- the drawing, in units of its view box ----

struct Point {
  double x = 0, y = 0;
};
constexpr double map_width = 360, box_width = 112, box_height = 42;

struct MapShape {
  double height = 0;
  std::vector<Point> at;
};
MapShape shape_of(std::size_t places) {
  if (places == 2) return {60, {{60, 30}, {300, 30}}};
  if (places == 3) return {190, {{180, 25}, {60, 165}, {300, 165}}};
  return {220, {{60, 25}, {300, 25}, {60, 195}, {300, 195}}};
}

std::string number(double value) { return fmt::format("{:.0f}", value); }

Html map_text(const Point& at, double below, std::string_view css_class, const std::string& text) {
  return tag(
      "text",
      {{"class", std::string(css_class)}, {"x", number(at.x)}, {"y", number(at.y + below)}, {"text-anchor", "middle"}},
      text);
}

Html map_line(const Point& from, const Point& to, const LinkRange& links, bool used, const std::string& what) {
  // A step thicker for every tenfold bandwidth above 10 MB/s.
  const double thickness = std::clamp(std::log10(links.bandwidth_bytes_per_s()) - 6, 1.0, 6.0);
  return tag("line",
             {{"class", used ? "link used" : "link"},
              {"x1", number(from.x)},
              {"y1", number(from.y)},
              {"x2", number(to.x)},
              {"y2", number(to.y)},
              {"stroke-width", fmt::format("{:.1f}", thickness)}},
             tag("title", {}, what));
}

Html map_label(const Point& at, const LinkRange& links) {
  const std::string latency = links.latency(), bandwidth = links.bandwidth();
  const double width = 6.2 * static_cast<double>(std::max(display_width(latency), display_width(bandwidth))) + 4;
  return {tag("rect", {{"class", "ground"},
                       {"x", number(at.x - width / 2)},
                       {"y", number(at.y - 14)},
                       {"width", number(width)},
                       {"height", "28"}}),
          map_text(at, -3, "small", latency), map_text(at, 10, "small", bandwidth)};
}

Html map_place(const Cluster& cluster, const Place& place, const Point& at) {
  std::size_t devices = 0;
  for (const int machine : place.machines) devices += machine_of(cluster, machine).devices.size();
  return {tag("rect",
              {{"class", "place"},
               {"x", number(at.x - box_width / 2)},
               {"y", number(at.y - box_height / 2)},
               {"width", number(box_width)},
               {"height", number(box_height)},
               {"rx", "6"}},
              tag("title", {}, place.name)),
          map_text(at, -3, "strong", shortened(place.name, 15)),
          map_text(at, 13, "", fmt::format("{} device{}", devices, devices == 1 ? "" : "s"))};
}

Html map_drawing(const PageLayout& layout, const std::vector<Place>& places) {
  const MapShape shape = shape_of(places.size());
  const auto used = used_links(layout, places);
  Html lines, labels, boxes;
  std::vector<std::string> words;
  for (std::size_t a = 0; a < places.size(); ++a) {
    boxes += map_place(*layout.cluster, places[a], shape.at[a]);
    for (std::size_t b = a + 1; b < places.size(); ++b) {
      LinkRange links = links_between(*layout.cluster, places[a], places[b]);
      links.add(links_between(*layout.cluster, places[b], places[a]));
      if (links.empty()) continue;
      const bool uses = layout.pipelines.empty() || used.contains({a, b});
      words.push_back(fmt::format("{} to {}: {}, {}{}", places[a].name, places[b].name, links.latency(),
                                  links.bandwidth(), used.contains({a, b}) ? ", used between stages" : ""));
      const bool diagonal = places.size() == 4 && a + b == 3;
      const double along = diagonal ? 0.28 : 0.5;
      const Point &from = shape.at[a], &to = shape.at[b];
      const Point label{from.x + along * (to.x - from.x), from.y + along * (to.y - from.y)};
      lines += map_line(from, to, links, uses, words.back());
      labels += map_label(label, links);
    }
  }
  return tag("svg",
             {{"class", "map"},
              {"viewBox", fmt::format("0 0 {:.0f} {:.0f}", map_width, shape.height)},
              {"role", "img"},
              {"aria-labelledby", "map-title map-words"}},
             {tag("title", {{"id", "map-title"}}, "Places and the links between them"),
              tag("desc", {{"id", "map-words"}}, fmt::format("{}", fmt::join(words, "; "))), lines, boxes, labels});
}

Html link_table(const Cluster& cluster, const std::vector<Place>& places) {
  std::vector<std::string> titles = {"from \u2193 to \u2192"};
  for (const Place& place : places) titles.push_back(place.name);
  std::vector<std::vector<Html>> rows;
  for (const Place& from : places) {
    std::vector<Html> row = {tag("b", {}, from.name)};
    for (const Place& to : places) {
      const LinkRange links = links_between(cluster, from, to);
      row.push_back(links.empty() ? Html("\u2013") : Html{div("", links.latency()), div("", links.bandwidth())});
    }
    rows.push_back(std::move(row));
  }
  return table(titles, rows);
}

}  // namespace

void LinkRange::add(const PathSpeed& link) {
  if (!any_) least_ = most_ = link;
  any_ = true;
  least_.latency_s = std::min(least_.latency_s, link.latency_s);
  most_.latency_s = std::max(most_.latency_s, link.latency_s);
  least_.bandwidth_bytes_per_s = std::min(least_.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s);
  most_.bandwidth_bytes_per_s = std::max(most_.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s);
}

void LinkRange::add(const LinkRange& links) {
  if (links.empty()) return;
  add(links.least_);
  add(links.most_);
}

std::string LinkRange::latency() const {
  return range_text(human_seconds(least_.latency_s), human_seconds(most_.latency_s));
}
std::string LinkRange::bandwidth() const {
  return range_text(human_rate(least_.bandwidth_bytes_per_s), human_rate(most_.bandwidth_bytes_per_s));
}

LinkRange links_inside(const Cluster& cluster, const std::vector<int>& machines) {
  LinkRange links;
  for (const int machine : machines) {
    const std::vector<int>& devices = machine_of(cluster, machine).devices;
    if (devices.size() > 1) links.add(cluster.link(devices[0], devices[1]));
  }
  return links;
}

Html links_content(const PageLayout& layout) {
  if (!layout.cluster->description.switches.empty() && layout.pipelines.empty()) return {};  // the switches are told
  const std::vector<Place> places = places_of(*layout.cluster);
  if (places.size() < 2 && (places.empty() || places[0].machines.size() < 2)) return {};
  if (places.size() > places_in_table) {
    LinkRange all;
    for (const Place& from : places)
      for (const Place& to : places)
        if (&from != &to) all.add(links_between(*layout.cluster, from, to));
    if (all.empty()) return {};
    return paragraph("links", fmt::format("Between {} places: {}, {}.", places.size(), all.latency(), all.bandwidth()));
  }
  const Html links = link_table(*layout.cluster, places);
  if (places.size() < 2 || places.size() > places_drawn) return div("links full", {tag("h3", {}, "Links"), links});
  return div("links", {map_drawing(layout, places), details("Links in both directions, and inside each place", links)});
}

}  // namespace motley
