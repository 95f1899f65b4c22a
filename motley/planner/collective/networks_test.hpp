// Networks that several tests plan on.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "motley/cost/collective/collective_network.hpp"

namespace motley {

constexpr std::int64_t vector_bytes = 400'000'000;  // what they all reduce

inline CollectiveUplink link_of(double bits_per_s, double latency_s = 0) {
  return {.latency_s = latency_s, .up_bytes_per_s = bits_per_s / 8, .down_bytes_per_s = bits_per_s / 8};
}

inline CollectiveNetwork star(const std::vector<double>& bits_per_s) {
  CollectiveNetwork network = empty_network("switch");
  for (std::size_t rank = 0; rank < bits_per_s.size(); ++rank)
    add_rank(network, 0, "r" + std::to_string(rank), link_of(bits_per_s[rank]), {}, {});
  return network;
}

inline double random_speed(std::mt19937_64& random) { return 1e9 * std::uniform_int_distribution<int>(1, 20)(random); }

enum class Ways { alike, different };

inline CollectiveUplink random_link(std::mt19937_64& random, Ways ways) {
  CollectiveUplink link = link_of(random_speed(random), 1e-5);
  if (ways == Ways::different) link.down_bytes_per_s = random_speed(random) / 8;
  return link;
}

inline CollectiveNetwork random_star(std::mt19937_64& random, int ranks) {
  CollectiveNetwork network = empty_network("switch");
  for (int rank = 0; rank < ranks; ++rank)
    add_rank(network, 0, "r" + std::to_string(rank), random_link(random, Ways::alike), {}, {});
  return network;
}

// Ranks below up to `levels` levels of switches, each below a switch chosen at random.
inline CollectiveNetwork random_tree(std::mt19937_64& random, int ranks, int levels, Ways ways) {
  CollectiveNetwork network = empty_network("s0");
  std::vector<int> switches = {0}, depth = {0};
  const int inner = std::uniform_int_distribution<int>(0, std::max(1, ranks / 2))(random);
  for (int s = 1; s <= inner; ++s) {
    const auto parent = std::uniform_int_distribution<std::size_t>(0, switches.size() - 1)(random);
    if (depth[parent] + 1 >= levels) continue;
    switches.push_back(
        add_switch(network, switches[parent], "s" + std::to_string(s), random_link(random, ways), {}, {}));
    depth.push_back(depth[parent] + 1);
  }
  for (int rank = 0; rank < ranks; ++rank)
    add_rank(network, switches[std::uniform_int_distribution<std::size_t>(0, switches.size() - 1)(random)],
             "r" + std::to_string(rank), random_link(random, ways), {}, {});
  return network;
}

}  // namespace motley
