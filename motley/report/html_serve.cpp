// The page of a serving plan.
#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/report/compare_report.hpp"
#include "motley/report/html_layout.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/html_timeline.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

PageLayout layout_of_page(const ServePlan& plan) {
  PageLayout layout{.cluster = &plan.cluster,
                    .layers = plan.model.arch.layers,
                    .hop_bytes = static_cast<double>(bytes_of(DType::bf16, plan.model.arch.hidden)),
                    .unused = plan.unused};
  std::map<std::string, std::size_t> number;
  for (const Stage& stage : plan.stages) {
    number[stage.id] = layout.stages.size();
    PageStage& made = layout.stages.emplace_back();
    made.name = stage.id;
    made.layers = stage.layers;
    for (const auto& device : stage.devices) made.devices.push_back(plan.cluster.find_device(device));
    if (stage.devices.size() > 1) made.facts.push_back(fmt::format("tp {}", stage.devices.size()));
    if (!stage.shares.empty()) {
      std::vector<std::string> shares;
      for (const double share : stage.shares) shares.push_back(percent(share));
      made.facts.push_back(fmt::format("shares {}", fmt::join(shares, " ")));
    }
    if (!stage.expert_shares.empty())
      made.facts.push_back(fmt::format("experts {}", fmt::join(stage.expert_shares, " ")));
    if (stage.role != StageRole::any) made.facts.emplace_back(name_of(stage.role));
    if (stage.embedding) made.facts.emplace_back("embedding");
    if (stage.head) made.facts.emplace_back("head");
    if (stage.offload) made.facts.push_back(streaming_text(stage));
    made.facts.push_back(fmt::format("KV for {} tokens", short_figure(static_cast<double>(stage.kv_tokens))));
  }
  double weights = 0;
  for (const Route& route : plan.routes) weights += route.weight;
  for (const Route& route : plan.routes) {
    PagePipeline& pipeline = layout.pipelines.emplace_back();
    pipeline.name = route.id;
    pipeline.note = fmt::format("{:.3g}% of the requests, {} in flight", 100 * route.weight / weights, route.batch);
    for (const Hop& hop : route.path) pipeline.hops.push_back({number.at(hop.stage), hop.layers});
  }
  const bool shared = layout.shares_stages();
  for (std::size_t s = 0; s < layout.stages.size(); ++s) layout.stages[s].css_class = colour_class(s);
  if (!shared)
    for (std::size_t p = 0; p < layout.pipelines.size(); ++p)
      for (const PageHop& hop : layout.pipelines[p].hops) layout.stages[hop.stage].css_class = colour_class(p);
  return layout;
}

Html memory(const ServePlan& plan) {
  std::vector<std::string> causes{"weights", "keys and values", "buffers", "reserve"};
  std::vector<PageMemory> bars;
  for (const Device& device : plan.cluster.devices)
    if (const auto found = plan.predicted.memory_bytes.find(device.name); found != plan.predicted.memory_bytes.end()) {
      for (const auto& [tier, of] : memory_tiers) {
        const TierMemory& held = found->second.*of;
        const bool own = of == &DeviceMemory::device;
        if (!own && held.total() == 0) continue;
        bars.push_back({own ? device.name : fmt::format("{} {}", device.name, tier),
                        own ? plan.cluster.types[static_cast<std::size_t>(device.type)].name : std::string(tier),
                        {held.weights, held.kv, held.activations, held.reserve, held.standby},
                        held.total(),
                        held.limit});
        if (held.standby > 0) causes.resize(bars.back().bytes.size(), "copies");
      }
    }
  return memory_content(causes, bars);
}

Html head(const ServePlan& plan) {
  const ServePrediction& predicted = plan.predicted;
  std::vector<PageFigure> list;
  if (predicted.tokens_per_s > 0)
    list = {{"output tokens", short_figure(predicted.tokens_per_s) + "/s", "predicted, all routes together"},
            {"requests", short_figure(predicted.requests_per_s) + "/s", "capacity of the plan"},
            {"request latency", human_seconds(predicted.latency_s), "mean lengths, at full batches"},
            {"busiest stage", human_seconds(predicted.bottleneck_s), "busy per request"}};
  if (predicted.slo_attainment)
    list.push_back({"inside deadlines", percent(*predicted.slo_attainment), "of the requests"});
  list.push_back(
      {"devices in use",
       fmt::format("{} of {}", plan.cluster.devices.size() - plan.unused.size(), plan.cluster.devices.size()), ""});
  if (const double usd = usd_per_hour(plan.cluster); usd > 0)
    list.push_back({"price of the cluster", fmt::format("{:.2f} $/h", usd), "all devices, idle ones too"});
  list.push_back(gap_figure(plan.search));
  const bool latency = plan.search.objective == "latency";
  const std::string bound = !plan.search.bound ? ""
                            : latency
                                ? fmt::format("No plan answers faster than {}.", human_seconds(*plan.search.bound))
                                : fmt::format("No plan exceeds {} output tokens/s.", short_figure(*plan.search.bound));
  return {paragraph("lead", plan_summary(plan) + "."), figures(list), search_sentence(plan.search, bound)};
}

Html routes(const ServeCost& cost) {
  std::vector<std::vector<Html>> rows;
  for (const RouteCost& route : cost.routes)
    rows.push_back({route.route, fmt::format("{}", route.batch), fmt::format("{:.3g}/s", route.requests_per_s),
                    human_seconds(route.latency_s), human_seconds(route.first_token_s),
                    human_seconds(route.per_token_s), human_seconds(route.bottleneck_s)});
  return table({"route", ">in flight", ">requests", ">latency", ">first token", ">per token", ">busiest stage"}, rows);
}

Html cost(const ServePlan& plan) {
  const CostOptions options{.form = plan.search.cost.empty() ? "motley" : plan.search.cost};
  try {
    const ServeCost priced = price_serve(plan, options);
    const std::string lead = fmt::format("Latency of a request in cost form {}: {}. Click a term to unfold it.",
                                         options.form, human_seconds(priced.latency_s));
    const std::string measured =
        fmt::format("The plan predicts {} from its measured profile, which this cost form ignores.",
                    human_seconds(plan.predicted.latency_s));
    return {paragraph("", lead), plan.profile.layer_rate.empty() ? Html() : paragraph("note", measured),
            cost_content(priced.tree), tag("h3", {}, "Routes"), routes(priced)};
  } catch (const Error& error) {
    return paragraph("note", fmt::format("Not priced: {}.", error.what()));
  }
}

}  // namespace

std::string html_report(const ServePlan& plan, const PageOptions& options) {
  const PageLayout layout = layout_of_page(plan);
  const std::string& cluster = plan.cluster.description.name;
  return page("motley plan: serve", fmt::format("{} on {}", plan.model.name, cluster.empty() ? "the cluster" : cluster),
              head(plan),
              {{"cluster", "Cluster", cluster_content(layout)},
               {"stages", "Stages", stages_content(layout)},
               {"memory", "Memory", memory(plan)},
               {"cost", "Cost", cost(plan)},
               {"workload", "Workload", workload_content(plan.workload)},
               {"timeline", "Timeline", serve_timeline(plan, options)}});
}

}  // namespace motley
