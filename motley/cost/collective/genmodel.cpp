#include "motley/cost/collective/genmodel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/base/units.hpp"

namespace motley {
namespace {

// Walks the ports of a path without a list: `visit(port, the port before it or -1)`.
class PathWalker {
 public:
  explicit PathWalker(const CollectiveNetwork& network) : network_(network), depth_(network.nodes.size(), 0) {
    for (std::size_t node = 1; node < network.nodes.size(); ++node)
      depth_[node] = depth_[at(network.nodes[node].parent)] + 1;
    place_.resize(network.nodes.size(), 0);
    for (const auto& node : network.nodes)
      for (std::size_t c = 0; c < node.children.size(); ++c) place_[at(node.children[c])] = c;
  }

  template <class Visit>
  void walk(int from, int to, Visit&& visit) {
    int a = network_.leaves[at(from)], b = network_.leaves[at(to)], below_a = -1, below_b = -1, previous = -1;
    down_.clear();
    const auto step = [&](int port) {
      if (port < 0) return;
      visit(port, previous);
      previous = port;
    };
    while (a != b) {
      if (depth_[at(a)] >= depth_[at(b)]) {
        step(network_.nodes[at(a)].up);
        below_a = a;
        a = network_.nodes[at(a)].parent;
      } else {
        down_.push_back(network_.nodes[at(b)].down);
        below_b = b;
        b = network_.nodes[at(b)].parent;
      }
    }
    const auto& meeting = network_.nodes[at(a)];
    if (!meeting.mesh.empty()) step(meeting.mesh[place_[at(below_a)] * meeting.children.size() + place_[at(below_b)]]);
    for (std::size_t i = down_.size(); i-- > 0;) step(down_[i]);
  }

 private:
  const CollectiveNetwork& network_;
  std::vector<int> depth_;
  std::vector<std::size_t> place_;
  std::vector<int> down_;
};

struct RankWork {
  double add_s = 0, access_s = 0;
};

class RoundPricer {
 public:
  RoundPricer(const CollectiveNetwork& network, double scale)
      : network_(network),
        scale_(scale),
        walker_(network),
        round_load_(network.ports.size(), 0),
        load_s_(network.ports.size(), 0),
        busy_s_(network.ports.size(), 0),
        work_s_(at(network.ranks()), 0),
        messages_(at(network.ranks()), 0),
        fan_in_(network.ports.size(), 0) {
    const bool incast = std::any_of(network.ports.begin(), network.ports.end(),
                                    [](const CollectivePort& port) { return port.incast_threshold > 0; });
    if (incast) fed_.assign(network.ports.size() * network.ports.size() / 64 + 1, 0);
  }

  RoundCost round(const CollectiveRound& transfers) {
    RoundCost cost;
    touched_.clear();
    int from = -1, to = -1;
    for (const auto& transfer : transfers) {
      const double bytes = static_cast<double>(transfer.last - transfer.first) * scale_;
      double latency = 0;
      walker_.walk(transfer.from, transfer.to, [&](int port, int previous) {
        if (round_load_[at(port)] == 0) touched_.push_back(port);
        round_load_[at(port)] += bytes;
        latency += network_.ports[at(port)].latency_s;
        if (network_.ports[at(port)].incast_threshold > 0 && previous >= 0) feed(port, previous);
      });
      cost.latency_s = std::max(cost.latency_s, latency);
      if (from == transfer.from && to == transfer.to) continue;  // ranges of one pair travel together
      from = transfer.from;
      to = transfer.to;
      messages_[at(from)] += 1;
      messages_[at(to)] += 1;
    }
    price_ports(cost);
    for (const auto feed : feeds_) fed_[feed / 64] = 0;
    feeds_.clear();
    price_ranks(transfers, cost);
    return cost;
  }

  void finish(CollectiveCost& cost) const {
    for (std::size_t port = 0; port < load_s_.size(); ++port) {
      if (load_s_[port] > cost.steady_s) {
        cost.steady_s = load_s_[port];
        cost.steady_port = network_.ports[port].name;
      }
      if (busy_s_[port] > cost.busy_s) {
        cost.busy_s = busy_s_[port];
        cost.busy = network_.ports[port].name;
      }
    }
    const auto ports_above = [&](double seconds) {
      return static_cast<double>(std::ranges::count_if(load_s_, [&](double load) { return load > seconds; }));
    };
    if (cost.steady_s > 0) cost.full_share = ports_above(0.98 * cost.steady_s) / ports_above(0);
    for (std::size_t rank = 0; rank < work_s_.size(); ++rank)
      if (work_s_[rank] > cost.busy_s) {
        cost.busy_s = work_s_[rank];
        cost.busy = network_.nodes[at(network_.leaves[rank])].name + " adding";
      }
    for (const double count : messages_) cost.messages = std::max(cost.messages, count);
  }

 private:
  // Counts the ports that feed this one in the round, each once.
  void feed(int port, int previous) {
    const std::size_t place = at(port) * network_.ports.size() + at(previous);
    const std::uint64_t bit = std::uint64_t{1} << (place % 64);
    if (fed_[place / 64] & bit) return;
    fed_[place / 64] |= bit;
    feeds_.push_back(place);
    ++fan_in_[at(port)];
  }

  double excess(int port) const {
    return std::max(0.0, fan_in_[at(port)] + 1.0 - network_.ports[at(port)].incast_threshold);
  }

  void price_ports(RoundCost& cost) {
    double longest = 0;
    for (const int port : touched_) {
      const auto& own = network_.ports[at(port)];
      const double transfer = round_load_[at(port)] / own.bytes_per_s;
      const double incast =
          own.incast_threshold > 0 ? round_load_[at(port)] * own.incast_s_per_byte * excess(port) : 0.0;
      load_s_[at(port)] += transfer;
      busy_s_[at(port)] += transfer + incast;
      round_load_[at(port)] = 0;
      fan_in_[at(port)] = 0;
      if (transfer + incast <= longest) continue;
      longest = transfer + incast;
      cost.transfer_s = transfer;
      cost.incast_s = incast;
      cost.port = own.name;
    }
  }

  void price_ranks(const CollectiveRound& transfers, RoundCost& cost) {
    ranges_.clear();
    for (const auto& transfer : transfers)
      if (transfer.kind == CollectiveStepKind::reduce) ranges_.push_back({transfer.to, transfer.first, transfer.last});
    sort_ranges();
    double longest = 0;
    for (std::size_t begin = 0; begin < ranges_.size();) {
      const int rank = ranges_[begin].rank;
      double received = 0, covered = 0;
      std::int64_t reached = ranges_[begin].first;
      for (; begin < ranges_.size() && ranges_[begin].rank == rank; ++begin) {
        const auto& range = ranges_[begin];
        received += static_cast<double>(range.last - range.first) * scale_;
        const std::int64_t from = std::max(range.first, reached);
        if (range.last > from) covered += static_cast<double>(range.last - from) * scale_;
        reached = std::max(reached, range.last);
      }
      const double add = received * network_.reduction[at(rank)].add_s_per_byte;
      const double access = (received + 2 * covered) * network_.reduction[at(rank)].access_s_per_byte;
      work_s_[at(rank)] += add + access;
      if (add + access <= longest) continue;
      longest = add + access;
      cost.add_s = add;
      cost.access_s = access;
      cost.rank = rank;
    }
  }

  // By rank, then by where they begin.
  void sort_ranges() {
    std::vector<std::size_t> place(at(network_.ranks()) + 1, 0);
    for (const auto& range : ranges_) ++place[at(range.rank) + 1];
    for (std::size_t rank = 0; rank + 1 < place.size(); ++rank) place[rank + 1] += place[rank];
    sorted_.resize(ranges_.size());
    for (const auto& range : ranges_) sorted_[place[at(range.rank)]++] = range;
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank + 1 < place.size(); ++rank) {
      std::sort(sorted_.begin() + static_cast<std::ptrdiff_t>(begin),
                sorted_.begin() + static_cast<std::ptrdiff_t>(place[rank]));
      begin = place[rank];
    }
    std::swap(ranges_, sorted_);
  }

  struct Range {
    int rank = 0;
    std::int64_t first = 0, last = 0;
    auto operator<=>(const Range&) const = default;
  };

  const CollectiveNetwork& network_;
  double scale_;
  PathWalker walker_;
  std::vector<double> round_load_, load_s_, busy_s_, work_s_, messages_;
  std::vector<std::uint64_t> fed_;  // a bit per port and port before it
  std::vector<std::size_t> feeds_;  // that are set
  std::vector<double> fan_in_;
  std::vector<int> touched_;
  std::vector<Range> ranges_, sorted_;
};

Term round_term(const RoundCost& cost, std::string name, double times) {
  std::vector<Term> terms;
  const auto add = [&](std::string_view what, double seconds, std::string note) {
    if (seconds > 0) terms.push_back(leaf(std::string(what), seconds * times, std::move(note)));
  };
  add("latency", cost.latency_s, "of the longest path");
  add("transfer", cost.transfer_s, cost.port);
  add("incast", cost.incast_s, cost.port);
  add("adding", cost.add_s, cost.rank >= 0 ? fmt::format("rank {}", cost.rank) : "");
  add("memory", cost.access_s, cost.rank >= 0 ? fmt::format("rank {}", cost.rank) : "");
  return sum_of(std::move(name), std::move(terms));
}

bool same_traffic(const RoundCost& a, const RoundCost& b) {
  const auto close = [](double x, double y) { return std::abs(x - y) <= 1e-9 * std::max(std::abs(x), std::abs(y)); };
  return close(a.latency_s, b.latency_s) && close(a.transfer_s, b.transfer_s) && close(a.incast_s, b.incast_s) &&
         close(a.add_s, b.add_s) && close(a.access_s, b.access_s);
}

}  // namespace

double CollectiveCost::pipelined_s(int chunks, const CollectiveCostOptions& options) const {
  const double cut = chunks;
  return latency_s + (time_s - latency_s) / cut + (cut - 1) / cut * busy_s + (cut - 1) * messages * options.message_s;
}

int CollectiveCost::best_chunks(int most, const CollectiveCostOptions& options) const {
  // Convex in the number of chunks: (time - latency - busy) / Q + Q * messages * message_s.
  const double gain = time_s - latency_s - busy_s, price = messages * options.message_s;
  if (gain <= 0) return 1;
  if (price <= 0) return most;
  const auto below = static_cast<int>(std::clamp(std::floor(std::sqrt(gain / price)), 1.0, static_cast<double>(most)));
  const int above = std::min(below + 1, most);
  return pipelined_s(above, options) < pipelined_s(below, options) ? above : below;
}

CollectiveCost price_rounds(const CollectiveNetwork& network, const std::vector<CollectiveRound>& rounds,
                            double scale) {
  CollectiveCost cost;
  RoundPricer pricer(network, scale);
  for (const auto& round : rounds) {
    cost.rounds.push_back(pricer.round(round));
    cost.time_s += cost.rounds.back().sum();
    cost.latency_s += cost.rounds.back().latency_s;
  }
  pricer.finish(cost);
  return cost;
}

Term genmodel_term(const CollectiveCost& cost) {
  std::vector<Term> terms;
  for (std::size_t first = 0; first < cost.rounds.size();) {
    std::size_t last = first + 1;
    while (last < cost.rounds.size() && same_traffic(cost.rounds[first], cost.rounds[last])) ++last;
    terms.push_back(round_term(
        cost.rounds[first],
        last == first + 1 ? fmt::format("round {}", first + 1) : fmt::format("rounds {} to {}", first + 1, last),
        static_cast<double>(last - first)));
    first = last;
  }
  return sum_of("rounds in sequence", std::move(terms));
}

Term pipelined_term(const CollectiveCost& cost, int chunks, const CollectiveCostOptions& options) {
  const double cut = chunks;
  return sum_of("pipelined",
                {leaf("latency", cost.latency_s, fmt::format("{} rounds", cost.rounds.size())),
                 leaf("first chunk", (cost.time_s - cost.latency_s) / cut,
                      fmt::format("{} through all rounds / {}", human_seconds(cost.time_s - cost.latency_s), chunks)),
                 leaf("steady state", (cut - 1) / cut * cost.busy_s,
                      fmt::format("{} / {} of {} at {}", chunks - 1, chunks, human_seconds(cost.busy_s), cost.busy)),
                 leaf("messages", (cut - 1) * cost.messages * options.message_s,
                      fmt::format("{} x {} x {}", chunks - 1, cost.messages, human_seconds(options.message_s)))});
}

PlanCounts factored_counts(const std::vector<int>& factors, int threshold) {
  PlanCounts counts;
  double product = 1;
  for (const int factor : factors) {
    product *= factor;
    counts.rounds += 2;
    counts.moved += 2 * (factor - 1) / product;
    counts.added += (factor - 1) / product;
    counts.accessed += (factor + 1) / product;
    if (threshold > 0) counts.excess += 2 * (factor - 1) / product * std::max(factor - threshold, 0);
  }
  return counts;
}

PlanCounts ring_counts(int ranks) {
  const double share = (ranks - 1.0) / ranks;
  return {.rounds = 2.0 * (ranks - 1), .moved = 2 * share, .added = share, .accessed = 3 * share, .excess = 0};
}

double genmodel_seconds(const PlanCounts& counts, const GenModelConstants& constants, double bytes) {
  return counts.rounds * constants.alpha_s +
         bytes * (counts.moved * constants.beta_s_per_byte + counts.added * constants.gamma_s_per_byte +
                  counts.accessed * constants.delta_s_per_byte + counts.excess * constants.epsilon_s_per_byte);
}

}  // namespace motley
