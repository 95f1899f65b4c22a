// The network as a collective sees it: a tree whose leaves are the ranks, with a port for every direction of a link.
//
// Built from [[switch]] tables where a cluster file has them; from a matrix as a mesh of its devices; otherwise from
// machines and sites: devices below machines, machines below sites, sites joined pair by pair. A node's children either
// meet at a crossbar, which limits nothing, or are joined pair by pair ("mesh").
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"

namespace motley {

// One direction of a link.
struct CollectivePort {
  std::string name;
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  int incast_threshold = 0;      // senders without harm, the receiver counted; 0: incast costs nothing
  double incast_s_per_byte = 0;  // per byte and sender beyond
  bool operator==(const CollectivePort&) const = default;
};

struct CollectiveNode {
  std::string name;
  int parent = -1;
  int rank = -1;           // of a leaf
  int up = -1, down = -1;  // ports towards the parent and back; -1: no limit
  std::vector<int> children = {};
  std::vector<int> mesh = {};  // of a mesh: port from child a to child b at a * children + b; empty: a crossbar
  bool operator==(const CollectiveNode&) const = default;
};

// Of the link above a node, bytes per second.
struct LinkCapacity {
  double up = std::numeric_limits<double>::infinity();
  double down = std::numeric_limits<double>::infinity();
};

struct CollectiveNetwork {
  std::vector<CollectivePort> ports;
  std::vector<CollectiveNode> nodes;  // node 0 is the root
  std::vector<int> leaves;            // node of every rank
  std::vector<Reduction> reduction;   // of every rank

  int ranks() const { return static_cast<int>(leaves.size()); }
  // Ports from one rank to another, in order.
  std::vector<int> path(int from, int to) const;
  // Ranks below every node.
  std::vector<int> ranks_below() const;
  bool has_mesh() const;  // of more than two children anywhere
  // Of every node; in a mesh a node's pair links count together.
  std::vector<LinkCapacity> capacities() const;
  bool operator==(const CollectiveNetwork&) const = default;
};

struct CollectiveUplink {
  double latency_s = 0;
  double up_bytes_per_s = std::numeric_limits<double>::infinity();
  double down_bytes_per_s = std::numeric_limits<double>::infinity();
};

// A network is put together from its root: node 0, which every network begins with.
CollectiveNetwork empty_network(std::string root);
// Returns the new node. `incast` is that of the switch above, which the port down to the node belongs to.
int add_switch(CollectiveNetwork& network, int parent, std::string name, const CollectiveUplink& link,
               const Incast& above, const Incast& own);
int add_rank(CollectiveNetwork& network, int parent, std::string name, const CollectiveUplink& link,
             const Incast& above, const Reduction& reduction);

// Ranks are the cluster's devices in order. Reduction that is not described costs nothing. Throws an input error where
// there are switches and a machine stands below none, or where nothing describes a link.
CollectiveNetwork collective_network(const Cluster& cluster);

}  // namespace motley
