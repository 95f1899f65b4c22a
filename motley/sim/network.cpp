#include "motley/sim/network.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "motley/base/error.hpp"

namespace motley::sim {
namespace {
constexpr std::uint32_t no_stage = ~std::uint32_t{0};
}

Network::Network(const ServePlan& plan, const Router& router, const std::optional<PipelineTime>& times)
    : plan_(plan), times_(router.times()), window_(widest_window(plan.model.arch)) {
  for (const RouteChain& chain : router.chains()) chains_.push_back(chain_model(chain));
  if (times) {
    MOTLEY_CHECK(chains_.size() == 1 && times->visits.size() == chains_[0].hops.size());
    take(*times, chains_[0]);
  }
  for (std::size_t route = 0; route < plan.routes.size(); ++route)
    if (const auto decode = router.decode_chain(route)) add_transfers(chains_[route], chains_[*decode], route);
  find_shared_links();
}

void Network::find_shared_links() {
  std::vector<std::set<std::uint32_t>> senders(links_.size());
  for (const ChainModel& chain : chains_) {
    for (const StageHop& hop : chain.hops)
      if (hop.next.link != no_link) senders[hop.next.link].insert(hop.stage);
    for (const Transfer& transfer : chain.transfers) senders[transfer.way.link].insert({no_stage, no_stage - 1});
  }
  for (ChainModel& chain : chains_)
    for (StageHop& hop : chain.hops)
      hop.leaves_in_order = hop.next.link == no_link || senders[hop.next.link].size() == 1;
}

ChainModel Network::chain_model(const RouteChain& chain) {
  ChainModel model{.back = times_.back(chain)};
  for (std::size_t hop = 0; hop < chain.hops; ++hop) {
    model.hops.push_back(
        {.stage = static_cast<std::uint32_t>(times_.stage_of(chain, hop)), .time = times_.stage(chain, hop)});
    if (hop > 0)
      model.hops[hop - 1].next = way(model.hops[hop - 1].stage, model.hops[hop].stage, times_.hop(chain, hop - 1));
  }
  return model;
}

void Network::take(const PipelineTime& times, ChainModel& chain) {
  for (std::size_t hop = 0; hop < chain.hops.size(); ++hop) {
    const auto visit = std::ranges::find(times.visits, chain.hops[hop].stage, &PipelineTime::Visit::stage);
    MOTLEY_CHECK(visit != times.visits.end());
    chain.hops[hop].time = visit->time;
    if (hop + 1 < chain.hops.size()) chain.hops[hop].next.time = times.crossings.at(hop).time;
  }
  chain.back = {.latency_s = times.back_s};
}

void Network::add_transfers(ChainModel& prefill, const ChainModel& decode, std::size_t route) {
  const std::vector<Hop>& path = plan_.routes[route].path;
  for (std::size_t i = 0; i < prefill.hops.size(); ++i)
    for (std::size_t j = 0; j < decode.hops.size(); ++j) {
      const LayerRange &here = path[i].layers, &there = path[prefill.hops.size() + j].layers;
      const LayerRange common{std::max(here.first, there.first), std::min(here.end, there.end)};
      const std::uint32_t from = prefill.hops[i].stage, to = decode.hops[j].stage;
      if (common.size() <= 0 || from == to) continue;
      prefill.transfers.push_back({way(from, to, times_.hop(from, to)), common, plan_.stages[from].kv_type});
    }
}

Way Network::way(std::uint32_t from, std::uint32_t to, HopTime time) {
  const std::uint32_t link = link_between(from, to, time);
  return {link, std::move(time)};
}

std::uint32_t Network::link_between(std::uint32_t from_stage, std::uint32_t to_stage, const HopTime& time) {
  const LinkKey key = times_.link_key(from_stage, to_stage, time);
  const auto& [inside, here, there] = key;
  const auto [entry, added] = link_numbers_.try_emplace(key, links_.size());
  if (added)
    links_.push_back(inside ? LinkModel{plan_.stages[here].id, plan_.stages[there].id}
                            : LinkModel{plan_.cluster.machines[here].name, plan_.cluster.machines[there].name});
  return entry->second;
}

StepLoad Network::load_of(const RoutedStep& step) const {
  StepLoad load;
  for (const ScheduledSequence& part : step.sequences)
    add_sequence(load, window_, part.position, part.count, part.samples);
  return load;
}

}  // namespace motley::sim
