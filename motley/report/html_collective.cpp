// The page of a collective plan.
#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cost/collective/collective_price.hpp"
#include "motley/report/collective_report.hpp"
#include "motley/report/html_layout.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr std::size_t ranks_in_grid = 64;
constexpr std::size_t bars_shown = 32;

Html head(const CollectivePlan& plan) {
  const CollectivePrediction& predicted = plan.predicted;
  std::vector<PageFigure> list = {
      {"in chunks", human_seconds(predicted.pipelined_s), "rounds overlap"},
      {"in rounds", human_seconds(predicted.time_s), "in sequence"},
      {"the network's limit", human_seconds(predicted.limit_s), predicted.binding_cut},
      {"efficiency", percent(predicted.efficiency), "limit / time in chunks"},
      {"busiest link", human_seconds(predicted.steady_s), "time of its bytes"},
      {"ranks", fmt::format("{}", plan.program.ranks), fmt::format("{} chunks", plan.program.chunks)}};
  return {paragraph("lead", collective_summary(plan) + "."), figures(list), search_sentence(plan.search, "")};
}

// The physical tree, where the cluster file has it: what collectives travel over.
Html switches(const Cluster& cluster) {
  std::vector<std::vector<Html>> rows;
  const auto speed = [](const LinkSpeed& link) {
    const double up = link.bandwidth_up_bytes_per_s;
    return link_text({link.latency_s, up > 0 ? up : link.bandwidth_bytes_per_s});
  };
  for (const Switch& one : cluster.description.switches) {
    if (one.uplink) rows.push_back({one.name, one.uplink->to, speed(one.uplink->speed)});
    for (const SwitchPort& port : one.ports)
      rows.push_back({one.name, fmt::format("{}", fmt::join(port.hosts, ", ")), speed(port.speed)});
  }
  return rows.empty() ? Html() : Html{tag("h3", {}, "Switches"), table({"switch", "to", "link, upwards"}, rows)};
}

// Every device is a rank.
Html cluster(const CollectivePlan& plan) {
  PageLayout layout{.cluster = &plan.cluster};
  for (std::size_t rank = 0; rank < plan.cluster.devices.size(); ++rank) {
    PageStage& made = layout.stages.emplace_back();
    made.name = fmt::format("rank {}", rank);
    made.css_class = colour_class(0);
    made.devices = {static_cast<int>(rank)};
  }
  return {cluster_content(layout), switches(plan.cluster)};
}

// A square per pair, the darker the more bytes.
Html pair_grid(const CollectivePlan& plan) {
  const auto bytes = pair_bytes(plan.program);
  const std::size_t ranks = bytes.size();
  double most = 0;
  for (const auto& row : bytes)
    for (const double one : row) most = std::max(most, one);
  if (ranks < 2 || ranks > ranks_in_grid || !(most > 0)) return {};
  Html squares;
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t to = 0; to < ranks; ++to) {
      if (bytes[from][to] <= 0) continue;
      squares += tag("rect",
                     {{"class", "pair"},
                      {"x", fmt::format("{}", to)},
                      {"y", fmt::format("{}", from)},
                      {"width", "1"},
                      {"height", "1"},
                      {"fill-opacity", fmt::format("{:.2f}", 0.15 + 0.85 * bytes[from][to] / most)}},
                     tag("title", {},
                         fmt::format("{} to {}: {}", plan.cluster.devices[from].name, plan.cluster.devices[to].name,
                                     human_bytes(bytes[from][to]))));
    }
  const std::string words = fmt::format("bytes between each pair of {} ranks, at most {}", ranks, human_bytes(most));
  return {
      tag("h3", {}, "Bytes between ranks"),
      paragraph(
          "note",
          fmt::format("Rows send and columns receive, in the order of the cluster's ranks. The darkest square is {}.",
                      human_bytes(most))),
      tag("svg",
          {{"class", "grid"},
           {"viewBox", fmt::format("0 0 {} {}", ranks, ranks)},
           {"role", "img"},
           {"aria-label", words}},
          {tag("rect", {{"class", "room"}, {"width", fmt::format("{}", ranks)}, {"height", fmt::format("{}", ranks)}}),
           squares})};
}

// Ranks that do the same are told together.
Html traffic(const CollectivePlan& plan) {
  const std::vector<RankTraffic> all = rank_traffic(plan.program);
  std::vector<std::pair<RankTraffic, std::vector<std::string>>> groups;
  double most = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    most = std::max({most, all[rank].sent, all[rank].received});
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == all[rank]; });
    if (same == groups.end())
      groups.push_back({all[rank], {plan.cluster.devices[rank].name}});
    else
      same->second.push_back(plan.cluster.devices[rank].name);
  }
  if (!(most > 0)) return {};
  std::vector<ChartRow> rows;
  for (const auto& [moved, devices] : groups) {
    if (rows.size() == 2 * bars_shown) break;
    const std::string sent = fmt::format("sends {}", human_bytes(moved.sent));
    const std::string received =
        fmt::format("receives {}, of which it adds {}", human_bytes(moved.received), human_bytes(moved.added));
    rows.push_back({.label = tag("b", {}, device_names(devices)),
                    .drawing = drawing("thin", sent, mark("m0", 0, moved.sent / most, sent)),
                    .figure = sent});
    rows.push_back({.label = fmt::format("{:.0f} messages", moved.messages),
                    .drawing = drawing("thin", received,
                                       {mark("m1", 0, moved.added / most, received),
                                        mark("m2", moved.added / most, moved.received / most, received)}),
                    .figure = fmt::format("receives {}", human_bytes(moved.received))});
  }
  Html content = {legend({{"m0", "sends"}, {"m1", "receives and adds"}, {"m2", "receives and keeps"}}), chart(rows)};
  if (groups.size() > bars_shown)
    content += paragraph("note", fmt::format("and {} more ranks or sets of equal ranks", groups.size() - bars_shown));
  return {content, pair_grid(plan)};
}

Html cost(const CollectivePlan& plan) {
  const CollectivePrice price = price_collective(plan);
  return {paragraph("", "In chunks, with overlapping rounds. Click a term to unfold it."),
          cost_content(price.pipelined), tag("h3", {}, "Rounds in sequence"), cost_content(price.rounds)};
}

}  // namespace

std::string html_report(const CollectivePlan& plan) {
  const std::string& cluster_name = plan.cluster.description.name;
  return page(
      "motley plan: collective",
      fmt::format("{} on {}", name_of(plan.program.operation), cluster_name.empty() ? "the cluster" : cluster_name),
      head(plan),
      {{"cluster", "Cluster", cluster(plan)}, {"traffic", "Traffic", traffic(plan)}, {"cost", "Cost", cost(plan)}});
}

}  // namespace motley
