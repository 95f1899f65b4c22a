// Which workers of a serving plan are linked: those of one stage with each other, and those that hand over between
// stages that follow one another on some route.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "motley/comm/transport/inherited_links.hpp"
#include "motley/plan/serve.hpp"
#include "motley/workers/messages.hpp"

namespace motley {

// The devices of all stages, in the order of the stages and ranks: each has this rank in crossings.
std::vector<std::string> worker_devices(const ServePlan& plan);

// Ranks in crossings that hand over to each other; each pair once, the smaller rank first.
std::vector<std::pair<int, int>> crossing_pairs(const ServePlan& plan);

struct PlanLinks {
  std::map<std::string, WorkerLinks> of_device;  // in a stage of one rank no links; crossings as crossing_pairs() says
  std::vector<FileDescriptor> owned;             // what their numbers stand for
};
// Throws an environment error.
PlanLinks link_workers(const ServePlan& plan, LinkKind kind);

}  // namespace motley
