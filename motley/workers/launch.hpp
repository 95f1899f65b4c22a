// What the workers of a serving plan are told: those that it starts with, and those that are to serve it later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/workers/fleet.hpp"
#include "motley/workers/worker_handle.hpp"

namespace motley {

// The devices of all stages, in the order of the stages and ranks: each has this place among the plan's workers.
std::vector<std::string> worker_devices(const ServePlan& plan);

enum class ReadsOf { own_layers, standby_too };
// Of the tensors of the device's layers the rows that its rank holds. Throws an input error where the device is in no
// stage.
std::vector<ReadRows> rows_of(const ServePlan& plan, const std::string& device, ReadsOf of = ReadsOf::own_layers);

// Gives each worker its place in the plan, and tells it what to load and how it reaches the others. `workers` are those
// of worker_devices(), in that order.
void launch_workers(Workers& workers, const ServePlan& plan, std::uint64_t epoch, const CacheHandover& handover = {});

// Asks a worker for the weights that a launch by this plan will need.
void ask_to_preload(const Worker& worker, const ServePlan& plan);

}  // namespace motley
