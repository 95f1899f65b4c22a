// The arithmetic of a chain, and a plan held against it. No solver.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/plan/chain_plan.hpp"

namespace motley {
namespace {

constexpr double cost_tolerance = 1e-9;  // relative

bool same_cost(double a, double b) { return std::abs(a - b) <= cost_tolerance * std::max(std::abs(a), std::abs(b)); }

// The entry of `sites` that a site belongs to, and its number within.
struct Place {
  std::size_t entry = 0;
  std::int64_t number = 0;
};
Place place_of(const ChainDescription& chain, std::int64_t site) {
  Place place;
  while (site >= chain.sites[place.entry].repeat) site -= chain.sites[place.entry++].repeat;
  place.number = site;
  return place;
}

}  // namespace

std::int64_t site_count(const ChainDescription& chain) {
  std::int64_t count = 0;
  for (const auto& sites : chain.sites) count += sites.repeat;
  return count;
}

std::string site_place(const ChainDescription& chain, std::int64_t site) {
  const Place place = place_of(chain, site);
  const ChainSites& sites = chain.sites[place.entry];
  std::string text = fmt::format("sites[{}]", place.entry);
  if (!sites.name.empty()) text = fmt::format("{} ({})", text, sites.name);
  if (sites.repeat > 1) text += fmt::format(", number {} of {}", place.number + 1, sites.repeat);
  return text;
}

ChainCost chain_cost(const ChainDescription& chain, const std::vector<std::int64_t>& choice) {
  MOTLEY_CHECK(static_cast<std::int64_t>(choice.size()) == site_count(chain));
  ChainCost cost;
  int before = -1;
  std::size_t site = 0;
  for (const auto& sites : chain.sites) {
    for (std::int64_t i = 0; i < sites.repeat; ++i, ++site) {
      const ChainSiteOption& option = sites.options.at(static_cast<std::size_t>(choice[site]));
      const int layout = layout_index(chain, option);
      cost.time_s += option.time_s;
      cost.sync_s += option.sync_s;
      cost.bytes += option.bytes;
      cost.transient_bytes = std::max(cost.transient_bytes, option.transient_bytes);
      if (before >= 0 && !chain.layout_change_s.empty())
        cost.layout_change_s +=
            chain.layout_change_s[static_cast<std::size_t>(before)][static_cast<std::size_t>(layout)];
      before = layout;
    }
  }
  return cost;
}

std::vector<Violation> verify(const ChainPlan& plan) {
  std::vector<Violation> violations;
  const auto add = [&](std::string place, std::string what, std::string hint = {}) {
    violations.push_back({std::move(place), std::move(what), std::move(hint)});
  };
  const std::int64_t sites = site_count(plan.chain);
  if (static_cast<std::int64_t>(plan.choice.size()) != sites) {
    add("choice", fmt::format("has {} entries for {} sites", plan.choice.size(), sites),
        "give one entry per site, with repeats written out");
    return violations;
  }
  for (std::int64_t site = 0; site < sites; ++site) {
    const auto options = static_cast<std::int64_t>(plan.chain.sites[place_of(plan.chain, site).entry].options.size());
    const std::int64_t chosen = plan.choice[static_cast<std::size_t>(site)];
    if (chosen < 0 || chosen >= options)
      add(fmt::format("choice[{}]", site),
          fmt::format("{}: option {} does not exist", site_place(plan.chain, site), chosen),
          fmt::format("choose an option from 0 to {}", options - 1));
  }
  if (!violations.empty()) return violations;
  const ChainCost cost = chain_cost(plan.chain, plan.choice);
  if (cost.total_bytes() > plan.chain.budget_bytes * (1 + cost_tolerance))
    add("choice", fmt::format("takes {} bytes, the budget is {}", cost.total_bytes(), plan.chain.budget_bytes));
  if (!same_cost(cost.total_s(), plan.predicted.time_s))
    add("predicted.time_s", fmt::format("is {}, the choice takes {}", plan.predicted.time_s, cost.total_s()));
  if (!same_cost(cost.total_bytes(), plan.predicted.bytes))
    add("predicted.bytes", fmt::format("is {}, the choice takes {}", plan.predicted.bytes, cost.total_bytes()));
  for (std::size_t i = 1; i < plan.front.size(); ++i)
    if (plan.front[i].bytes <= plan.front[i - 1].bytes || plan.front[i].time_s >= plan.front[i - 1].time_s)
      add(fmt::format("front[{}]", i), "must take more bytes and less time than the previous point");
  return violations;
}

}  // namespace motley
