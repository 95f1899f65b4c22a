// From measured steps to the constants of StepCost: the inverse of cost/serve/step.hpp.
#pragma once

#include <vector>

#include "motley/cost/serve/step.hpp"

namespace motley {

// A step of a stage that holds the whole chain on one rank, and how long it took.
struct StepSample {
  const Rank* rank = nullptr;  // what the device is asked for; its rates are not read
  double layers = 0;
  StepLoad load;
  double seconds = 0;
};

// What a device reaches.
struct StepRates {
  double bandwidth_bytes_per_s = 0;
  double product_flop_per_s = 0;
  double attention_bandwidth_bytes_per_s = 0;
  double attention_flop_per_s = 0;
  Overhead overhead;
  bool in_turn = false;  // products, and the head, do not compute while they read: both times add up
};

// Seconds that StepCost gives such a step at these rates: layers max(bytes / bandwidth, FLOPs / rates), the same for
// the head, and the overheads.
double step_s(const StepSample& sample, const StepRates& rates);

// The rates with the least sum of relative errors, so that a few disturbed samples hardly count. None is negative, and
// one that the samples do not show is infinite. `in_turn` where that fits clearly better. Throws an internal error
// without samples.
StepRates fit_steps(const std::vector<StepSample>& samples);

// Rates that no sample shows, because the other one of the same work bounds all of them (weights that stay in a cache
// on a processor that computes slowly), at the least that leaves it so: no prediction changes. Infinite where none is
// shown.
StepRates with_unseen_rates(StepRates rates, const std::vector<StepSample>& samples);

// |predicted / measured - 1|: half of the samples are better than the first, all than the second.
struct FitError {
  double median = 0, worst = 0;
};
FitError fit_error(const std::vector<StepSample>& samples, const StepRates& rates);

// The link between any two ranks of a group with which its steps take as long as they did, all ranks together slowed
// down by `crowding`. `small` fixes the latency and `large` the bandwidth; both are steps of a stage that holds the
// whole chain.
struct GroupSample {
  StepLoad load;
  double seconds = 0;
};
PathSpeed fit_link(const StepCost& cost, TensorGroup group, double layers, double crowding, const GroupSample& small,
                   const GroupSample& large);

}  // namespace motley
