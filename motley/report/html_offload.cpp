// The page of a plan that offloads.
#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cost/offload/flexgen_plan.hpp"
#include "motley/cost/offload/offload_cost.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/offload_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

Html head(const OffloadPlan& plan) {
  const std::string binding = binding_resource(plan);
  std::vector<PageFigure> list = {
      {"output", fmt::format("{:.4g} tokens/s", plan.predicted.tokens_per_s), "of all sequences together"},
      {"a request", human_seconds(plan.predicted.latency_s), "of mean lengths"},
      {"a pass", fmt::format("{} sequences", plan.batch * plan.batches),
       fmt::format("{} micro-batches of {}", plan.batches, plan.batch)}};
  if (!binding.empty()) list.push_back({"bound by", resource_text(binding), ""});
  list.push_back(gap_figure(plan.search));
  const std::string bound =
      plan.search.bound ? fmt::format("No placement gives more than {:.4g} tokens/s.", *plan.search.bound) : "";
  return {figures(list), search_sentence(plan.search, bound)};
}

// A bar per tier, as full as it is.
Html tiers(const OffloadPlan& plan) {
  const auto found = plan.predicted.memory_bytes.find(plan.device);
  if (found == plan.predicted.memory_bytes.end()) return {};
  std::vector<ChartRow> rows;
  for (const auto& [name, of] : memory_tiers) {
    const TierMemory& tier = found->second.*of;
    if (tier.limit == 0) continue;
    const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
    const std::string words =
        fmt::format("weights {}, keys and values {}, activations {}, reserve {}, of {}", bytes(tier.weights),
                    bytes(tier.kv), bytes(tier.activations), bytes(tier.reserve), bytes(tier.limit));
    const auto limit = static_cast<double>(tier.limit);
    rows.push_back({.label = tag("b", {}, std::string(name)),
                    .drawing = {stacked_bar({{"m0", static_cast<double>(tier.weights)},
                                             {"m1", static_cast<double>(tier.kv)},
                                             {"m2", static_cast<double>(tier.activations)},
                                             {"m3", static_cast<double>(tier.reserve)}},
                                            limit, limit, words),
                                paragraph("note", words)},
                    .figure = bytes(tier.total())});
  }
  return {
      paragraph("", "What each tier of memory holds, as a share of its capacity."),
      legend(
          {{"m0", "weights"}, {"m1", "keys and values"}, {"m2", "activations"}, {"m3", "reserve"}, {"room", "free"}}),
      chart(rows)};
}

Html resources(const OffloadPlan& plan) {
  if (plan.predicted.busy.empty()) return {};
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, share] : plan.predicted.busy) order.emplace_back(-share, name);
  std::sort(order.begin(), order.end());
  std::vector<ChartRow> rows;
  for (const auto& [share, name] : order)
    rows.push_back({.label = tag("b", {}, resource_text(name)),
                    .drawing = drawing("bar", fmt::format("{} {}", name, percent(-share)),
                                       {mark("room", 0, 1), mark("fill " + colour_class(0), 0, -share)}),
                    .figure = percent(-share)});
  return {paragraph("", "Share of a pass in which each resource works. The longest bar binds."), chart(rows)};
}

}  // namespace

std::string html_report(const OffloadPlan& plan) {
  const CostOptions cost{.form = plan.search.cost, .settings = {}};
  const Term tree = cost.form == "flexgen" ? explain_flexgen(plan, cost) : explain_offload(plan, {});
  return page("motley plan: offload", fmt::format("{} on {}", plan.model.name, plan.device), head(plan),
              {{"tiers", "Memory", tiers(plan)},
               {"resources", "Resources", resources(plan)},
               {"cost", "Cost", cost_content(tree)}});
}

}  // namespace motley
