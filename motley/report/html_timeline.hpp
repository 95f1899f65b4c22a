// What happens when, on a page: a simulated run of a serving plan, a step of a training plan.
#pragma once

#include "motley/plan/train_plan.hpp"
#include "motley/report/html.hpp"
#include "motley/report/html_report.hpp"
#include "motley/trainer/record/run_record.hpp"

namespace motley {

Html serve_timeline(const ServePlan& plan, const PageOptions& options);
Html train_timeline(const TrainPlan& plan);

// Boxes in a lane over [0, span_s], the forward passes' in its upper half, and what they and other marks mean.
Html pass_boxes(const std::vector<TimelinePass>& passes, double span_s);
// `waited`: with gradients of weights that have.
Html step_legend(bool waited);

}  // namespace motley
