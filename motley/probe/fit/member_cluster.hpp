// Measured members as a cluster file: what was measured takes the place of what was described, the rest stays.
#pragma once

#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/probe/fit/member_fit.hpp"

namespace motley {

// Which machine of the cluster every member runs on: the one with its address (the port apart), or, where no machine
// has an address, the one in its place. Throws an input error where that is not one machine for each member.
std::vector<std::string> machines_of_members(const Cluster& cluster, const std::vector<std::string>& addresses);

enum class SwitchChange {
  none,          // no tree fits, and none was described
  made,          // the switch "measured", with a port per machine
  ports,         // of described switches: the measured machines' ports
  not_explained  // switches are described, but no tree explains the figures: they stay as they are
};

struct ProbedCluster {
  ClusterDescription description;
  SwitchChange switches = SwitchChange::none;
  bool incast_refused = false;  // it was seen, but the fit is off by more than most_fit_error
};

// Every measured pair gets a [[link]], or its entries in the matrix where there is one. Where a tree fits, machines get
// ports of switches; the incast of a single one is written where all machines were measured.
ProbedCluster probed_cluster(const Cluster& cluster, const std::vector<std::string>& machines, const MemberFit& fit);

}  // namespace motley
