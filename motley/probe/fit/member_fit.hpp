// From measured exchanges between members to a network that can be planned with: rates and latencies of the links,
// ports of one or two levels of switches where those explain them, and what incast costs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/cost/collective/genmodel_fit.hpp"
#include "motley/probe/fit/probe_schedule.hpp"

namespace motley {

struct MemberMeasurements {
  int members = 0;
  std::vector<double> round_trip_s;  // of small messages, between members a and b at a * members + b; symmetric
  std::vector<ProbeSample> samples;
  std::vector<MeasuredCollective> collectives = {};  // all_reduces in several shapes, where ports are alike
  std::string date = {};
};

// Of the largest size, without the round trip that beginning and end of an exchange take.
struct MeasuredRate {
  double bytes_per_s = 0;
  double alpha_s = 0;  // what the smallest size takes in addition to its transfer
  double error = 0;    // relative: by how much the next longer time of the largest size is longer
};

struct MemberLink {
  int from = 0, to = 0;
  double latency_s = 0;  // one way: half a round trip
  MeasuredRate rate;     // alone, with as many streams as the library takes
};

// Several flows at once; the rate is that of all together.
struct MemberTotal {
  ProbePhase phase = ProbePhase::spread;
  std::vector<MemberPair> flows;
  MeasuredRate rate;
  double tree_bytes_per_s = 0;  // what the tree makes of it
};

struct MemberPort {
  double up_bytes_per_s = 0, down_bytes_per_s = 0;
  double latency_s = 0;  // one way, to the switch
};

// Every member at a port of a switch: a flow has what the ports on its way leave it. One switch for all; or, where
// some pairs reach less than their ports, one for every group of members that reach each other at their ports' rates,
// joined by uplinks to one above.
struct MemberTree {
  std::vector<MemberPort> ports;    // of the members
  std::vector<int> group;           // of every member; from 0 on, in the order of the first member
  std::vector<MemberPort> uplinks;  // of every group; a group of one has none of its own (0), its member is one above
  double link_error = 0;            // of the pairs alone, relative, largest
  double total_error = 0;           // of one to all, and of pairs both ways
  double latency_error_s = 0;

  bool fits() const;
  int groups() const { return static_cast<int>(uplinks.size()); }
  int members_of(int one) const;
};
inline constexpr double most_tree_error = 0.10;
inline constexpr double most_tree_total_error = 0.15;

// GenModel's incast: seconds per byte into a member grow by cost * max(w - threshold, 0), w counting the receiver.
struct MemberIncast {
  int threshold = 0;  // 0: none was seen
  double cost_s_per_byte = 0;
  double residual = 0;       // root mean square of the relative errors
  double largest_error = 0;  // relative
  int measurements = 0;
};

struct MemberFit {
  int members = 0;
  std::vector<MemberLink> links;  // by from, then to
  std::vector<MemberTotal> totals;
  MemberTree tree;                      // the one that explains the figures; else one switch, which does not
  std::optional<MemberIncast> incast;   // none: fewer than three members
  std::optional<GenModelFit> genmodel;  // none: too few shapes of collectives were measured
  std::string date;

  const MemberLink& link(int from, int to) const;
};

// The rate of the slowest port where one switch explains the figures with ports alike (within 10 %); 0 elsewhere.
// GenModel's closed forms hold for such switches alone.
double alike_ports(const MemberTree& tree);

// Both throw an input error where samples are missing or are none. Links are of all ordered pairs, and need no more
// than the first phase.
std::vector<MemberLink> fit_links(const MemberMeasurements& measured);
MemberFit fit_members(const MemberMeasurements& measured);

}  // namespace motley
