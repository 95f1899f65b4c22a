// From pipelines to a plan.
#pragma once

#include "motley/planner/serve/grouping/groups.hpp"

namespace motley {

// A route for every pipeline, weighted by what it can serve, and what to expect of it all. `step`: no larger than the
// one that the pipelines were found for.
ServePlan write_pipelines(const ServeProblem& problem, const std::vector<Pipeline>& pipelines, const StepLimits& step);

// Fills in what stays idle, and why: what the nearest pipelines would do with it.
void list_unused(Groups& groups, const std::vector<Pipeline>& pipelines, ServePlan& plan);

// The stages of a pipeline, called PREFIX/s0, PREFIX/s1, ...
std::vector<Stage> pipeline_stages(const ServeProblem& problem, const Pipeline& pipeline, const std::string& prefix);

// Notes the devices that no stage of the plan uses.
void list_unused(const ServeProblem& problem, const std::string& reason, ServePlan& plan);

// The largest KV room, in whole blocks and no more than `most_tokens`, that fits with the stage's other bytes on each
// of its devices, and where it offloads in its part of the machine's memory less the host's reserve.
std::int64_t kv_room_tokens(const ServePlan& plan, Stage stage, std::int64_t most_tokens);
// Slots for stages that share them: as many as `most`, or as have room for requests of the workload's mean lengths. 0:
// the model's layers need none.
std::int64_t kv_slots(const ServePlan& plan, const std::vector<Stage>& stages, std::int64_t most);
// Of these, those that the stage makes use of: windows do not shrink what is offloaded.
std::int64_t slots_of(const ServePlan& plan, const Stage& stage, std::int64_t slots);
// That run at once on a route: a full micro-batch, and where there are several stages one for each and one more.
std::int64_t most_kv_slots(const ServePlan& plan, const Route& route);
// What `max_batch` requests at full context need; more can never be used.
std::int64_t most_kv_tokens(const ServePlan& plan, std::int64_t max_batch);

// Activations that go from machine to machine get the type that the options give.
void set_crossing_types(const ServeProblem& problem, ServePlan& plan);

// KV room and slots of a route's stages: what memory leaves on the tightest, for one block table serves them all; no
// more than `most_tokens`.
void fill_kv(ServePlan& plan, const Route& route, std::int64_t most_tokens);

// What to expect of a plan: fills in `predicted`, and the batches where the cost form has its own.
void predict(ServePlan& plan, const CostOptions& options);

}  // namespace motley
