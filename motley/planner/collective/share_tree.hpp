// A hierarchy of reduction along a network's tree, and who owns how much of the vector.
//
// At every node the members (children, or groups of them) bring partial sums of each range; one member is chosen to
// hold the range and takes those of the others. Let z of a member be what enters it in addition to what leaves it for
// good, in vectors: then, whatever is chosen,
//     sum of z over a node's members = members - 1 + z of the node         (the root's: -1)
// and a link carries 1 + |z| vectors each way, both halves together. A member with z < 0 hands out more than one
// partial sum instead of taking any in. So the least time is the least T in which such a z exists with |z| <= T u - 1
// on every link and z >= 0 at every rank: one pass up and one down. Ranges are chosen in proportion to z, independently
// at every node, which gives every link its z exactly.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "motley/cost/collective/collective_network.hpp"
#include "motley/plan/collective_programs.hpp"

namespace motley {

// What a node of the network does with its children.
struct NodePolicy {
  std::vector<int> factors = {};  // groups of factors[0] children, these in groups of factors[1], ...; empty: one group
  GroupPattern pattern = GroupPattern::direct;
  int owners = 0;  // most ranks directly below that own anything, fastest first; 0: all
  auto operator<=>(const NodePolicy&) const = default;
};

// Which way of a link what enters a node takes, and what leaves it the other. Shares move what is taken in of the
// reducing half and what is handed out of the spreading half, each by its own way.
enum class ShareWay {
  slower,  // both by the slower way: one tree serves both halves
  down,    // entering by the way down: the reducing half
  up       // entering by the way up: the spreading half, which is the tree turned round
};

enum class ShareRule {
  fastest,  // least steady load
  spread,   // the same time, and what is not busy all of it as little busy as possible: it makes up for delays
  equal     // every member as much as the next
};

struct ShareNode {
  int network_node = -1;  // -1: a group inside one
  int rank = -1;
  GroupPattern pattern = GroupPattern::direct;
  std::vector<int> members = {};
  double in_bytes_per_s = 0, out_bytes_per_s = 0;  // of its link
  bool may_own = true;
  bool must_merge = false;  // hands out one partial sum: in a ring
  double z = 0;
  double chosen = 0;  // share of the ranges for which it is chosen among its node's members
  double passed = 0;  // share of the ranges whose partial sums it hands on as they are
};

struct ShareTree {
  std::vector<ShareNode> nodes;  // members come after their node; node 0 is the root
  double steady_s = 0;           // least time of the busiest link
  bool in_step = true;           // all members of a node come to it in the same round
};

// `policies`: by node of the network; leaves' are not read.
ShareTree share_tree(const CollectiveNetwork& network, const std::vector<NodePolicy>& policies, ShareRule rule,
                     ShareWay way, double bytes);

// The reduction half, for a vector of `bytes`; borders are multiples of `alignment` bytes but for the last. None where
// it would have more transfers than `most_transfers`: unlike shares on several levels cut the vector ever finer.
std::optional<std::vector<CollectiveRound>> share_rounds(const ShareTree& tree, std::int64_t bytes,
                                                         std::int64_t alignment, std::size_t most_transfers);

// Both halves, each along its own tree: the rank in which a range comes together hands it to the one from which it
// spreads.
std::optional<std::vector<CollectiveRound>> share_rounds(const ShareTree& reducing, const ShareTree& spreading,
                                                         std::int64_t bytes, std::int64_t alignment,
                                                         std::size_t most_transfers);

// The same hierarchy for owners that are given, one block per rank.
CollectiveGroup group_of(const ShareTree& tree);

}  // namespace motley
