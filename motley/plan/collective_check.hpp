// Proves that a collective program computes its collective, by running it on sets of ranks instead of numbers.
#pragma once

#include <vector>

#include "motley/plan/collective.hpp"
#include "motley/plan/plan.hpp"

namespace motley {

// Every range of every rank's result holds each rank's contribution exactly once (all_reduce, reduce_scatter), or the
// right rank's (all_gather, broadcast); sends and receives pair off; no step waits for ever, also where a send waits
// for its receiver only. Exact, in O(ranks^2 / 64) per byte range that steps tell apart. Empty: nothing wrong; at most
// a few violations are listed.
std::vector<Violation> check_program(const CollectiveProgram& program);

}  // namespace motley
