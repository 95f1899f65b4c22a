// Micro-batches of a step for replicas that differ, so that the last of them ends as early as can be.
#pragma once

#include <cstdint>
#include <vector>

namespace motley {

// When a replica has done its m-th micro-batch: it rises with m.
struct ReplicaPace {
  // Of fewer micro-batches than stages in lockstep: the stages. A full pipeline takes rest_s + m * each_s; an infinite
  // each_s: it cannot do any.
  std::vector<double> lockstep_stages_s = {};
  double rest_s = 0, each_s = 0;

  double end_s(std::int64_t micro_batches) const;
  // The most that it has done by then, up to `most`.
  std::int64_t within(double bound_s, std::int64_t most) const;
};

// Together `total`, each replica at least `least` (0 or 1); exact. Empty where there are fewer than the least.
// With `least` 0 and none that can do any, all get none.
std::vector<std::int64_t> apportion(const std::vector<ReplicaPace>& replicas, std::int64_t total, std::int64_t least);

}  // namespace motley
