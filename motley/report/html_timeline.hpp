// What happens when, on a page: a simulated run of a serving plan, a step of a training plan.
#pragma once

#include "motley/plan/train.hpp"
#include "motley/report/html.hpp"
#include "motley/report/html_report.hpp"

namespace motley {

Html serve_timeline(const ServePlan& plan, const PageOptions& options);
Html train_timeline(const TrainPlan& plan);

}  // namespace motley
