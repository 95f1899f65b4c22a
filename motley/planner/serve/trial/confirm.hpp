// The last word on candidates: serving simulated. Under deadlines the closed form misleads in two ways that only a
// simulation shows: a long prompt chunk in one micro-batch holds up all that follow it through a deep pipeline, and
// load below the limit leaves room that a quick pipeline turns into time to spare.
#pragma once

#include "motley/planner/serve/grouping/grouping.hpp"

namespace motley {

// Whether a simulation can tell more than the closed form: requests have deadlines and a rate.
bool worth_simulating(const ServeProblem& problem);

// The plan that keeps most deadlines at the workload's rate; of those that keep as many, the one that does so at the
// highest rate. Candidates: this grouping, those for tighter deadlines, for latency and for throughput; each with
// prompt chunks of several sizes.
ServePlan confirmed(Groups& groups, const Grouping& grouping);

}  // namespace motley
