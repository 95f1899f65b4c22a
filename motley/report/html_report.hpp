// A plan, or a training run, as one page for a browser: nothing else to load, no script. docs/guides/report.md
// says what is on it.
//
//   write_file("report.html", html_report(read_plan_file<ServePlan>("plan.json"), {}));
#pragma once

#include <cstdint>
#include <string>

#include "motley/plan/chain_plan.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/plan/offload_plan.hpp"
#include "motley/plan/rent_plan.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/plan/train_plan.hpp"
#include "motley/trainer/record/run_record.hpp"

namespace motley {

struct PageOptions {
  std::int64_t requests = 200;  // that the simulation behind a serving plan's timeline plays
  std::uint64_t seed = 0;       // of their arrivals
};

// The plans are sound (verify). The same plan and options give the same page to the byte.
std::string html_report(const ServePlan& plan, const PageOptions& options);
std::string html_report(const TrainPlan& plan);
std::string html_report(const RentPlan& plan);
std::string html_report(const ChainPlan& plan);
std::string html_report(const CollectivePlan& plan);
std::string html_report(const OffloadPlan& plan);
// Of a run with at least one step.
std::string html_report(const TrainRun& run);

}  // namespace motley
