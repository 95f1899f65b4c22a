// What the simulator shows of a serving plan with three times the requests that it is predicted to serve. The server's
// queues are as long as usual, and refuse the rest: in queues without an end, routes that prefill on one stage would
// wait in it for ever more unlike times.
#pragma once

#include <algorithm>

#include "motley/cost/serve/serve_cost.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {

// Output tokens per second, by a price of the plan.
inline double saturated_tokens_per_s(ServePlan plan, const ServeCost& cost) {
  const double rate = cost.requests_per_s;
  for (RequestClass& request : plan.workload.classes)
    request.rate_per_s = 3 * rate / static_cast<double>(std::ssize(plan.workload.classes));
  plan.workload.arrival.process = ArrivalProcess::constant;
  double in_flight = 0;
  for (const auto& r : cost.routes) in_flight += static_cast<double>(r.batch);
  const double duration_s = std::max(400.0, 12 * in_flight) / rate;
  const SimOptions options{.measure_from_s = 0.4 * duration_s, .measure_until_s = duration_s, .stop_s = duration_s};
  return simulate(plan, draw_requests(plan.workload, {.duration_s = duration_s}), options).all.tokens_per_s;
}

}  // namespace motley
