#include "motley/cost/serve/hand_over.hpp"

#include <algorithm>

namespace motley {
namespace {

KvLink link_between(const Cluster& cluster, const KvHolder& from, const KvHolder& to) {
  const int a = from.devices.front(), b = to.devices.front();
  const int here = cluster.devices[static_cast<std::size_t>(a)].machine,
            there = cluster.devices[static_cast<std::size_t>(b)].machine;
  return here == there ? KvLink{true, a, b} : KvLink{false, here, there};
}

KvHolder holder_of(const ServePlan& plan, const Hop& hop) {
  const Stage& stage = plan.stage(hop.stage);
  KvHolder holder{.devices = {}, .layers = hop.layers, .kv_type = stage.kv_type};
  for (const auto& name : stage.devices) holder.devices.push_back(plan.cluster.find_device(name));
  return holder;
}

}  // namespace

std::vector<KvMove> kv_moves(const Cluster& cluster, const Architecture& arch, const std::vector<KvHolder>& prefill,
                             const std::vector<KvHolder>& decode, double tokens) {
  std::vector<KvMove> moves;
  for (std::size_t i = 0; i < prefill.size(); ++i)
    for (std::size_t j = 0; j < decode.size(); ++j) {
      const LayerRange &here = prefill[i].layers, &there = decode[j].layers;
      const LayerRange common{std::max(here.first, there.first), std::min(here.end, there.end)};
      if (common.size() <= 0) continue;
      const double bytes = kv_bytes_of(arch, common, prefill[i].kv_type, tokens);
      moves.push_back({.from = i,
                       .to = j,
                       .bytes = bytes,
                       .path = best_hop(cluster, prefill[i].devices, decode[j].devices, bytes),
                       .link = link_between(cluster, prefill[i], decode[j])});
    }
  return moves;
}

std::vector<KvMove> kv_moves(const ServePlan& plan, const Route& route) {
  const auto first = hand_over_hop(plan, route);
  // A request of one token is done where it was prefilled.
  if (!first || plan.workload.mean_output_tokens() <= 1) return {};
  std::vector<KvHolder> prefill, decode;
  for (std::size_t hop = 0; hop < route.path.size(); ++hop)
    (hop < *first ? prefill : decode).push_back(holder_of(plan, route.path[hop]));
  std::vector<KvMove> moves =
      kv_moves(plan.cluster, plan.model.arch, prefill, decode, plan.workload.mean_prompt_tokens());
  for (auto& move : moves) move.to += *first;
  return moves;
}

std::map<KvLink, double> link_loads(const std::vector<KvMove>& moves) {
  std::map<KvLink, double> loads;
  for (const auto& move : moves) loads[move.link] += move.occupancy_s();
  return loads;
}

double seconds_of(const std::vector<KvMove>& moves) {
  std::map<KvLink, double> busy_s;
  double last_s = 0;
  for (const auto& move : moves)
    last_s = std::max(last_s, (busy_s[move.link] += move.occupancy_s()) + move.path.wait_s(move.bytes));
  return last_s;
}

}  // namespace motley
