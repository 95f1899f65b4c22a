#include "motley/report/chain_report.hpp"

#include <fmt/format.h>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

std::string option_name(const ChainSites& sites, std::int64_t option) {
  const std::string& name = sites.options[static_cast<std::size_t>(option)].name;
  return name.empty() ? fmt::format("option {}", option) : name;
}

}  // namespace

std::string chain_bytes_text(double bytes) { return bytes < 1e6 ? fmt::format("{:.6g} B", bytes) : human_bytes(bytes); }

std::vector<ChainRun> chain_runs(const ChainPlan& plan) {
  std::vector<ChainRun> runs;
  std::size_t site = 0;
  for (std::size_t entry = 0; entry < plan.chain.sites.size(); ++entry) {
    const ChainSites& sites = plan.chain.sites[entry];
    for (std::int64_t done = 0; done < sites.repeat;) {
      const std::int64_t chosen = plan.choice[site];
      std::int64_t alike = 0;
      while (done + alike < sites.repeat && plan.choice[site + static_cast<std::size_t>(alike)] == chosen) ++alike;
      const ChainSiteOption& option = sites.options[static_cast<std::size_t>(chosen)];
      const auto count = static_cast<double>(alike);
      runs.push_back({.sites = sites.name.empty() ? fmt::format("sites[{}]", entry) : sites.name,
                      .option = option_name(sites, chosen),
                      .count = alike,
                      .seconds = count * (option.time_s + option.sync_s),
                      .bytes = count * option.bytes});
      done += alike;
      site += static_cast<std::size_t>(alike);
    }
  }
  return runs;
}

std::string chain_report(const ChainPlan& plan) {
  Table table({"sites", ">", "take", ">time", ">memory"});
  for (const ChainRun& run : chain_runs(plan))
    table.add(
        {run.sites, fmt::format("{}", run.count), run.option, human_seconds(run.seconds), chain_bytes_text(run.bytes)});
  const ChainCost cost = chain_cost(plan.chain, plan.choice);
  std::string text = table.render();
  text += fmt::format("\ntime    {}", human_seconds(cost.total_s()));
  if (cost.layout_change_s > 0)
    text += fmt::format(", {} of it for layout changes", human_seconds(cost.layout_change_s));
  text += fmt::format("\nmemory  {} of {}", chain_bytes_text(cost.total_bytes()),
                      chain_bytes_text(plan.chain.budget_bytes));
  if (cost.transient_bytes > 0) text += fmt::format(", {} of it transient", chain_bytes_text(cost.transient_bytes));
  if (const double price = plan.predicted.price_s_per_byte.value_or(0); price > 0) {
    const bool small = plan.chain.budget_bytes < 1e6;
    text += fmt::format("\nprice   one more {} would save about {}", small ? "byte" : "GB",
                        human_seconds(small ? price : 1e9 * price));
  }
  text += fmt::format("\nsearch  {}", name_of(plan.search.status));
  if (plan.search.gap.value_or(0) > 0) text += fmt::format(", bound {}", human_seconds(plan.search.bound.value_or(0)));
  return text + "\n";
}

Term explain_chain(const ChainPlan& plan) {
  const ChainCost cost = chain_cost(plan.chain, plan.choice);
  return sum_of("chain", {leaf("sites", cost.time_s), leaf("synchronising", cost.sync_s),
                          leaf("layout changes", cost.layout_change_s)});
}

std::string chain_front_report(const std::vector<ChainPoint>& front) {
  Table table({">memory", ">time"});
  for (const auto& point : front) table.add({chain_bytes_text(point.bytes), human_seconds(point.time_s)});
  return table.render();
}

}  // namespace motley
