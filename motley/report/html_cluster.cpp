// The cluster on a page: a map, machines with their devices and what these are for, what stays idle.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "motley/base/units.hpp"
#include "motley/report/html_layout.hpp"
#include "motley/report/html_map.hpp"
#include "motley/report/html_marks.hpp"

namespace motley {
namespace {

constexpr std::size_t machines_told_apart = 16;  // of more, alike ones of a site are told together
constexpr std::size_t groups_in_card = 16;       // of devices with one purpose
constexpr std::size_t slots_drawn = 16;          // of one such group

constexpr std::size_t no_stage = static_cast<std::size_t>(-1);

// Devices of a card that do the same.
struct Purpose {
  std::string css_class, name;
  std::vector<int> devices;
};

class Cards {
 public:
  explicit Cards(const PageLayout& layout)
      : layout_(layout),
        stage_of_(layout.cluster->devices.size(), no_stage),
        pipeline_of_(layout.stages.size(), no_stage) {
    for (std::size_t s = 0; s < layout.stages.size(); ++s)
      for (const int device : layout.stages[s].devices) stage_of_[static_cast<std::size_t>(device)] = s;
    for (std::size_t p = 0; p < layout.pipelines.size(); ++p)
      for (const PageHop& hop : layout.pipelines[p].hops) pipeline_of_[hop.stage] = p;
  }

  // Of alike machines.
  Html card(const std::vector<int>& machines) const {
    std::vector<int> devices;
    for (const int machine : machines) {
      const std::vector<int>& held = cluster().machines[static_cast<std::size_t>(machine)].devices;
      devices.insert(devices.end(), held.begin(), held.end());
    }
    const std::string& first = cluster().machines[static_cast<std::size_t>(machines.front())].name;
    const std::string& last = cluster().machines[static_cast<std::size_t>(machines.back())].name;
    const LinkRange inside = links_inside(cluster(), machines);
    bool one_type = true;
    for (const int device : devices)
      one_type = one_type && &cluster().type_of(device) == &cluster().type_of(devices[0]);
    Html groups;
    for (const Purpose& purpose : purposes(devices)) groups += group(purpose, one_type ? Types::told : Types::each);
    return tag(
        "article", {{"class", "card machine"}},
        {tag("h4", {},
             machines.size() == 1
                 ? Html(first)
                 : Html{first, " \u2026 ", last, span("note", fmt::format("{} machines", machines.size()))}),
         paragraph(
             "note",
             fmt::format("{}{}", device_types(cluster(), devices),
                         inside.empty() ? "" : fmt::format("; inside {}, {}", inside.latency(), inside.bandwidth()))),
         tag("ul", {{"class", "purposes"}}, groups)});
  }

 private:
  const Cluster& cluster() const { return *layout_.cluster; }

  enum class Detail { stage, pipeline, use };
  Purpose purpose_of(int device, Detail detail) const {
    const std::size_t stage = stage_of_[static_cast<std::size_t>(device)];
    if (stage == no_stage) return {"idle", "idle", {}};
    const std::size_t pipeline = pipeline_of_[stage];
    if (detail == Detail::stage || pipeline == no_stage)
      return {layout_.stages[stage].css_class, layout_.stages[stage].name, {}};
    if (detail == Detail::pipeline) return {layout_.stages[stage].css_class, layout_.pipelines[pipeline].name, {}};
    return {"used", "in use", {}};
  }

  // In as much detail as a card has room for.
  std::vector<Purpose> purposes(const std::vector<int>& devices) const {
    std::vector<Purpose> list;
    for (const Detail detail : {Detail::stage, Detail::pipeline, Detail::use}) {
      list.clear();
      std::map<std::string, std::size_t> known;
      for (const int device : devices) {
        const int type = cluster().devices[static_cast<std::size_t>(device)].type;
        Purpose purpose = purpose_of(device, detail);
        const auto [place, added] = known.try_emplace(fmt::format("{} {}", type, purpose.name), list.size());
        if (added) list.push_back(std::move(purpose));
        list[place->second].devices.push_back(device);
      }
      if (list.size() <= groups_in_card) break;
    }
    return list;
  }

  enum class Types { told, each };  // above all groups, or with each
  Html group(const Purpose& purpose, Types types) const {
    Html slots;
    if (purpose.devices.size() <= slots_drawn)
      for (const int device : purpose.devices)
        slots += tag(
            "i", {{"class", purpose.css_class}, {"title", cluster().devices[static_cast<std::size_t>(device)].name}});
    const std::size_t count = purpose.devices.size();
    const std::string note = types == Types::each  ? device_types(cluster(), purpose.devices)
                             : count > slots_drawn ? fmt::format("{} devices", count)
                                                   : "";
    return tag("li", {},
               {slots.empty() ? Html() : tag("span", {{"class", "slots"}, {"aria-hidden", "true"}}, slots),
                tag("b", {}, purpose.name), note.empty() ? Html() : span("note", note)});
  }

  const PageLayout& layout_;
  std::vector<std::size_t> stage_of_, pipeline_of_;
};

// Machines of a site, in groups that share a card.
std::vector<std::vector<int>> card_groups(const Cluster& cluster, const std::string& site) {
  const bool fold = cluster.machines.size() > machines_told_apart;
  std::vector<std::vector<int>> groups;
  int last_description = -1;
  for (std::size_t i = 0; i < cluster.machines.size(); ++i) {
    const Machine& machine = cluster.machines[i];
    if (machine.site != site || machine.devices.empty()) continue;
    if (!fold || machine.description != last_description) groups.emplace_back();
    last_description = machine.description;
    groups.back().push_back(static_cast<int>(i));
  }
  return groups;
}

Html machines(const PageLayout& layout) {
  const Cards cards(layout);
  std::vector<std::string> sites;
  for (const Machine& machine : layout.cluster->machines)
    if (std::find(sites.begin(), sites.end(), machine.site) == sites.end()) sites.push_back(machine.site);
  Html content;
  for (const std::string& site : sites) {
    Html list;
    for (const auto& group : card_groups(*layout.cluster, site)) list += cards.card(group);
    if (list.empty()) continue;
    content += div("site", {tag("h3", {}, sites.size() > 1 ? site : "Machines"), div("cards machines", list)});
  }
  return div("sites", content);
}

Html device_type_table(const PageLayout& layout) {
  const Cluster& cluster = *layout.cluster;
  std::vector<std::size_t> all(cluster.types.size()), idle(cluster.types.size());
  for (const Device& device : cluster.devices) ++all[static_cast<std::size_t>(device.type)];
  for (const UnusedDevice& unused : layout.unused)
    ++idle[static_cast<std::size_t>(
        cluster.devices[static_cast<std::size_t>(cluster.find_device(unused.device))].type)];
  std::vector<std::vector<Html>> rows;
  for (std::size_t i = 0; i < cluster.types.size(); ++i) {
    const DeviceType& type = cluster.types[i];
    rows.push_back({type.name, fmt::format("{}", all[i]), fmt::format("{}", all[i] - idle[i]),
                    human_bytes(static_cast<double>(type.memory_bytes)),
                    human_rate(type.memory_bandwidth_bytes_per_s)});
  }
  return table({"type", ">devices", ">in use", ">memory", ">memory bandwidth"}, rows);
}

Html idle_devices(const PageLayout& layout) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const UnusedDevice& unused : layout.unused) {
    const auto known =
        std::find_if(reasons.begin(), reasons.end(), [&](const auto& entry) { return entry.first == unused.reason; });
    if (known == reasons.end())
      reasons.push_back({unused.reason, {unused.device}});
    else
      known->second.push_back(unused.device);
  }
  if (reasons.empty()) return paragraph("note", "Every device is in use.");
  Html list;
  for (const auto& [reason, devices] : reasons)
    list += tag("li", {},
                {tag("b", {}, fmt::format("{}", devices.size())), ": ", device_names(devices), span("note", reason)});
  return {tag("h3", {}, "Idle devices and reasons"), tag("ul", {{"class", "reasons"}}, list)};
}

}  // namespace

Html cluster_content(const PageLayout& layout) {
  return {div("overview", {device_type_table(layout), links_content(layout)}), machines(layout), idle_devices(layout)};
}

}  // namespace motley
