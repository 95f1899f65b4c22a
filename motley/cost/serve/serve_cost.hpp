// What a serving plan costs: any valid plan, made by a planner or by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/cost/form/uncertainty.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

struct RouteCost {
  std::string route = {};
  std::int64_t batch = 1;     // requests in flight, decoding where others prefill (hexgen: requests per job)
  double latency_s = 0;       // of a request of mean lengths, with this many in flight
  double bottleneck_s = 0;    // busy time per request of its busiest stage (or link for keys and values), other routes
                              // through it included
  double first_token_s = 0;   // prefill alone
  double per_token_s = 0;     // between tokens after the first
  double requests_per_s = 0;  // by this route, at the routes' given weights
  std::int64_t micro_batches = 1;
};

struct ServeCost {
  double latency_s = 0;     // mean over the routes by their weights
  double bottleneck_s = 0;  // of the busiest stage of all
  double tokens_per_s = 0;  // output tokens
  double requests_per_s = 0;
  std::vector<RouteCost> routes;
  Term tree;  // of latency_s
};

// Where stages prefill or decode only, each is priced for its part of a request; keys and values then load the links
// between them. A route's batch is the plan's, as far as the KV room of its stages goes (docs/concepts/costs.md), or
// the form's setting (`motley.batch`, `hexgen.batch`).
//
// Throws an input error where the form is unknown, or the plan's stages and routes do not hang together (verify says
// more).
ServeCost price_serve(const ServePlan& plan, const CostOptions& options);

// Device types that rest on the measurements of others, and what the plan's tokens/s then are. None in published forms,
// which know no shares of the peaks.
std::vector<TypeUncertainty> uncertainties(const ServePlan& plan, const CostOptions& options);
// The plan's prediction with where it lies, all those types together at either end.
ServePrediction with_ranges(const ServePlan& plan, const CostOptions& options);

// The point with the size of chunks at which a prompt that is alone is read soonest.
ServePoint at_best_chunk(ServePoint point, const std::function<double(const ServePoint&)>& first_token_s);

// How a batch of requests in flight is cut into micro-batches that follow one another through the pipeline: the numbers
// of micro-batches that are tried.
std::vector<std::int64_t> batch_grid(std::int64_t most);  // 1, 2, 3, 4, 6, 8, 12, ...
std::vector<std::int64_t> micro_batch_counts(std::int64_t batch, const StepLimits& step);
std::int64_t sequences_per_step(std::int64_t batch, std::int64_t micro_batches);

// Time from job to job at a stage that is the bottleneck or with few jobs in flight, whichever is longer.
double cycle_s(const ServeForm& form, double latency_s, double load_s, std::int64_t in_flight);

// Of the mean request of a class: prefill is near enough proportional to what is computed of the prompt.
double first_token_of(const Workload& workload, const RequestClass& request, const RouteCost& route);

// Largest excess over a deadline, relative: 0 where the route keeps all deadlines of the workload's classes (closed
// form, for the mean request of each class).
double deadline_excess(const Workload& workload, const RouteCost& route);

}  // namespace motley
