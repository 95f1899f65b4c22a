#include "motley/report/html_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "motley/base/units.hpp"
#include "motley/cost/form/group.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr std::size_t pipelines_told_apart = 4;  // of more, alike ones are told together
constexpr std::size_t memory_bars_shown = 24;
constexpr double narrow_box = 0.035;  // share of a strip below which a box has no number

std::string layers_text(const LayerRange& layers) {
  if (layers.size() == 1) return fmt::format("layer {}", layers.first);
  return fmt::format("layers {}-{}", layers.first, layers.end - 1);
}

const PageStage& stage_of(const PageLayout& layout, const PageHop& hop) { return layout.stages[hop.stage]; }

std::string hop_text(const PageLayout& layout, const PageHop& from, const PageHop& to) {
  const PathSpeed link =
      best_link(*layout.cluster, stage_of(layout, from).devices, stage_of(layout, to).devices, layout.hop_bytes);
  return link_text(link);
}

// What makes two pipelines alike.
std::string shape_of(const PageLayout& layout, const PagePipeline& pipeline) {
  std::string shape;
  for (std::size_t i = 0; i < pipeline.hops.size(); ++i) {
    const PageStage& stage = stage_of(layout, pipeline.hops[i]);
    if (i > 0) shape += hop_text(layout, pipeline.hops[i - 1], pipeline.hops[i]);
    shape += fmt::format("|{} {} {}|", device_types(*layout.cluster, stage.devices), layers_text(stage.layers),
                         fmt::join(stage.facts, ","));
  }
  return shape;
}

Html strip(const PageLayout& layout, const PagePipeline& pipeline) {
  Html boxes;
  std::vector<std::string> words;
  for (const PageHop& hop : pipeline.hops) {
    const PageStage& stage = stage_of(layout, hop);
    const double share = static_cast<double>(hop.layers.size()) / static_cast<double>(layout.layers);
    boxes += tag("span",
                 {{"class", "box " + stage.css_class},
                  {"style", fmt::format("flex-grow:{}", hop.layers.size())},
                  {"title", fmt::format("{}: {}", stage.name, layers_text(hop.layers))}},
                 share < narrow_box ? "" : fmt::format("{}", hop.layers.size()));
    words.push_back(fmt::format("{}", hop.layers.size()));
  }
  return tag("div",
             {{"class", "strip"},
              {"role", "img"},
              {"aria-label", fmt::format("layers per stage: {}", fmt::join(words, ", "))}},
             boxes);
}

Html stage_line(const PageLayout& layout, const PageHop& hop) {
  const PageStage& stage = stage_of(layout, hop);
  std::vector<std::string> facts = {layers_text(hop.layers)};
  facts.insert(facts.end(), stage.facts.begin(), stage.facts.end());
  return tag("li", {{"class", "stage " + stage.css_class}},
             {span("name", stage.name),
              span("what", {tag("b", {}, device_types(*layout.cluster, stage.devices)), " ",
                            device_names(device_names_of(*layout.cluster, stage.devices))}),
              span("facts", fmt::format("{}", fmt::join(facts, ", ")))});
}

Html devices_of_alike(const PageLayout& layout, const std::vector<const PagePipeline*>& alike) {
  std::vector<std::vector<Html>> rows;
  for (const PagePipeline* pipeline : alike) {
    std::vector<int> devices;
    for (const PageHop& hop : pipeline->hops) {
      const PageStage& stage = stage_of(layout, hop);
      devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
    }
    rows.push_back({pipeline->name, device_names(device_names_of(*layout.cluster, devices))});
  }
  return details(fmt::format("The devices of all {}", alike.size()), table({"pipeline", "devices"}, rows));
}

Html pipeline_card(const PageLayout& layout, const std::vector<const PagePipeline*>& alike) {
  const PagePipeline& pipeline = *alike.front();
  Html lines;
  for (std::size_t i = 0; i < pipeline.hops.size(); ++i) {
    if (i > 0)
      lines += tag("li", {{"class", "hop"}}, "\u2193 " + hop_text(layout, pipeline.hops[i - 1], pipeline.hops[i]));
    lines += stage_line(layout, pipeline.hops[i]);
  }
  const std::string title =
      alike.size() > 1 ? fmt::format("{} and {} equal ones", pipeline.name, alike.size() - 1) : pipeline.name;
  return tag("article", {{"class", "card pipeline"}},
             {tag("h3", {}, {title, span("note", pipeline.note)}), strip(layout, pipeline),
              tag("ol", {{"class", "stages"}}, lines), alike.size() > 1 ? devices_of_alike(layout, alike) : Html()});
}

// Stages over the layers, for pipelines that share them.
Html layer_chart(const PageLayout& layout) {
  std::vector<std::size_t> order(layout.stages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return layout.stages[a].layers.first < layout.stages[b].layers.first;
  });
  const auto total = static_cast<double>(layout.layers);
  const PageAxis axis = count_axis(total);
  std::vector<ChartRow> rows;
  for (const std::size_t number : order) {
    const PageStage& stage = layout.stages[number];
    const std::string types = device_types(*layout.cluster, stage.devices);
    const std::string what = fmt::format("{}: {} on {}", stage.name, layers_text(stage.layers), types);
    rows.push_back({.label = {tag("b", {}, stage.name), " ", types},
                    .drawing = drawing("lane", what,
                                       {axis_lines(axis),
                                        mark("fill " + stage.css_class, static_cast<double>(stage.layers.first) / total,
                                             static_cast<double>(stage.layers.end) / total, what)}),
                    .figure = device_names(device_names_of(*layout.cluster, stage.devices))});
  }
  rows.push_back(axis_row(axis));
  return chart(rows);
}

Html shared_routes(const PageLayout& layout) {
  Html list;
  for (const PagePipeline& pipeline : layout.pipelines) {
    std::vector<std::string> path;
    for (const PageHop& hop : pipeline.hops) path.push_back(stage_of(layout, hop).name);
    list += tag("li", {},
                {tag("b", {}, pipeline.name), ": ", pipeline.note,
                 span("note", fmt::format("{}", fmt::join(path, " \u203a ")))});
  }
  return {tag("h3", {}, "Routes"), tag("ul", {{"class", "reasons"}}, list)};
}

}  // namespace

bool PageLayout::shares_stages() const {
  std::vector<int> uses(stages.size());
  for (const PagePipeline& pipeline : pipelines)
    for (const PageHop& hop : pipeline.hops)
      if (++uses[hop.stage] > 1) return true;
  return false;
}

std::string device_types(const Cluster& cluster, const std::vector<int>& devices) {
  std::vector<std::pair<int, std::size_t>> counts;  // in order of the first of each type
  for (const int device : devices) {
    const int type = cluster.devices[static_cast<std::size_t>(device)].type;
    const auto known =
        std::find_if(counts.begin(), counts.end(), [&](const auto& entry) { return entry.first == type; });
    if (known == counts.end())
      counts.emplace_back(type, 1);
    else
      ++known->second;
  }
  std::vector<std::string> parts;
  for (const auto& [type, count] : counts)
    parts.push_back(fmt::format("{} \u00d7 {}", count, cluster.types[static_cast<std::size_t>(type)].name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> device_names_of(const Cluster& cluster, const std::vector<int>& devices) {
  std::vector<std::string> names;
  for (const int device : devices) names.push_back(cluster.devices[static_cast<std::size_t>(device)].name);
  return names;
}

std::string link_text(const PathSpeed& link) {
  return fmt::format("{}, {}", human_seconds(link.latency_s), human_rate(link.bandwidth_bytes_per_s));
}

Html stages_content(const PageLayout& layout) {
  if (layout.shares_stages())
    return {paragraph("", "Routes share stages. A box spans the layers of its stage."), layer_chart(layout),
            shared_routes(layout)};
  std::vector<std::pair<std::string, std::vector<const PagePipeline*>>> cards;
  for (const PagePipeline& pipeline : layout.pipelines) {
    const bool fold = layout.pipelines.size() > pipelines_told_apart;
    const std::string shape = fold ? shape_of(layout, pipeline) : pipeline.name;
    const auto known = std::find_if(cards.begin(), cards.end(), [&](const auto& card) { return card.first == shape; });
    if (known == cards.end())
      cards.push_back({shape, {&pipeline}});
    else
      known->second.push_back(&pipeline);
  }
  Html content;
  for (const auto& [shape, alike] : cards) content += pipeline_card(layout, alike);
  return {
      paragraph(
          "",
          "Each box is a stage, as wide as its number of layers. Below: its devices and the link to the next stage."),
      div("cards pipelines", content)};
}

Html memory_content(const std::vector<std::string>& causes, const std::vector<PageMemory>& devices) {
  if (devices.empty()) return {};
  struct Bar {
    const PageMemory* memory = nullptr;
    std::vector<std::string> devices;
  };
  std::vector<Bar> bars;
  std::int64_t largest = 1;
  for (const PageMemory& memory : devices) {
    largest = std::max({largest, memory.limit, memory.total});
    const auto same = std::find_if(bars.begin(), bars.end(), [&](const Bar& bar) {
      return bar.memory->type == memory.type && bar.memory->bytes == memory.bytes && bar.memory->limit == memory.limit;
    });
    if (same == bars.end())
      bars.push_back({&memory, {memory.device}});
    else
      same->devices.push_back(memory.device);
  }
  const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
  std::vector<ChartRow> rows;
  for (const auto& [memory, names] : bars) {
    std::vector<BarPart> parts;
    std::vector<std::string> words;
    for (std::size_t i = 0; i < causes.size(); ++i) {
      const std::string what = fmt::format("{} {}", causes[i], bytes(memory->bytes[i]));
      parts.push_back({fmt::format("m{}", i), static_cast<double>(memory->bytes[i]), what});
      if (memory->bytes[i] > 0) words.push_back(what);
    }
    const double share =
        static_cast<double>(memory->total) / static_cast<double>(std::max<std::int64_t>(1, memory->limit));
    const std::string all = fmt::format("{}", fmt::join(words, ", "));
    rows.push_back(
        {.label = {tag("b", {}, device_names(names)), " ",
                   names.size() > 1 ? fmt::format("{} \u00d7 {}", names.size(), memory->type) : memory->type},
         .drawing = {stacked_bar(parts, static_cast<double>(memory->limit), static_cast<double>(largest), all),
                     paragraph("note", all)},
         .figure = {tag("b", {}, percent(share)),
                    fmt::format(" {} of {}", bytes(memory->total), bytes(memory->limit))}});
  }
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < causes.size(); ++i) entries.push_back({fmt::format("m{}", i), causes[i]});
  entries.push_back({"room", "free"});
  Html content = {legend(entries)};
  if (rows.size() <= memory_bars_shown) return {content, chart(rows)};
  const auto cut = rows.begin() + static_cast<std::ptrdiff_t>(memory_bars_shown);
  return {content, chart({rows.begin(), cut}),
          details(fmt::format("{} more bars", rows.size() - memory_bars_shown), chart({cut, rows.end()}))};
}

}  // namespace motley
