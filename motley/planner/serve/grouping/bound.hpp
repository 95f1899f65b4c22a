// What no deployment on these devices can exceed.
#pragma once

#include "motley/planner/serve/grouping/groups.hpp"

namespace motley {

// Requests per second: the lesser of two relaxations.
//   compute  every device computes all the time, at the largest step (Groups::most_requests_per_s); where roles may
//   part,
//            whole requests, prefills or decodes, whatever earns most
//   memory   by Little's law no more than N / T: N requests fit in the memory that one copy of the weights leaves
// , and none takes less time T than reading all layers for each token over all of the fastest
//            machine's memory at once
double most_requests_per_s(const Groups& groups);

}  // namespace motley
