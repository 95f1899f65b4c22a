// Training plans for people, and a step of them as a picture.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/train/train_price.hpp"
#include "motley/plan/train_plan.hpp"
#include "motley/report/compare_report.hpp"

namespace motley {

// Replicas and their stages, memory per device, what is predicted, what stays unused and why.
std::string train_plan_report(const TrainPlan& plan);
// One line: "4 replicas of 7 stages on 28 of 28 devices".
std::string train_plan_summary(const TrainPlan& plan);

// "tp 2 dp 4 zero3 recompute", without its layers.
std::string strategy_text(const LayerStrategy& strategy);

// Bytes per device by cause, and what one more on the devices of each stage would save (seconds of a step per byte, by
// replica and stage; empty: not known).
std::string train_memory_report(const TrainPlan& plan, const std::vector<std::vector<double>>& prices_s_per_byte);
Value train_memory_json(const TrainPlan& plan, const std::vector<std::vector<double>>& prices_s_per_byte);

// A step, event by event: use of every stage.
std::string train_step_report(const TrainPlan& plan, const TrainStepPrice& price);
Value train_step_json(const TrainPlan& plan, const TrainStepPrice& price);

// Chrome's trace event format: a track per stage with its passes, and the exchange of gradients.
std::string train_chrome_trace(const TrainPlan& plan, const TrainStepPrice& price,
                               const std::vector<PipelinePass>& passes);

// Plans side by side, and relative to the first.
std::string compare_report(const std::vector<NamedPlan<TrainPlan>>& plans);
Value compare_json(const std::vector<NamedPlan<TrainPlan>>& plans);

}  // namespace motley
