// `motley cluster probe --members`: the part of the verb that measures links between machines.
#pragma once

#include <string>

#include "motley/cli/group_members.hpp"

namespace motley::cli {

struct MemberProbeCommand {
  MemberOptions member;
  std::string names;  // of the machines, comma between; empty: the cluster's, or member-0, member-1, ...
  std::string cluster;
  double seconds = 0;  // 0: as many as the group needs
  double wait_s = 60;  // for the other members
  Output output;
};

int run_member_probe(const MemberProbeCommand& command);

}  // namespace motley::cli
