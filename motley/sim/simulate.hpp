// Serving, simulated: requests arrive, the router and the scheduler of batching/ make steps of them, stages and links
// take the time that cost/ gives them. What is modelled and what not: docs/concepts/simulator.md.
//
//   const SimResult result = simulate(plan, draw_requests(plan.workload, {.duration_s = 60}), {});
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "motley/batching/router.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

inline constexpr double never_s = std::numeric_limits<double>::infinity();

// A device is gone for a while, and its stage with it.
struct Fault {
  std::string device;
  double from_s = 0;
  double until_s = never_s;
};

enum class Record { summary, timeline };

struct SimOptions {
  CostOptions cost = {};      // of the form `motley`: its overheads
  RouterOptions router = {};  // whose costs are these
  // Of a plan with one route: times that were measured, instead of those of the cost model.
  std::optional<PipelineTime> times = {};
  std::vector<Fault> faults = {};
  // Requests that arrive in [measure_from_s, measure_until_s) are judged; tokens, busy times and queues are counted in
  // it.
  double measure_from_s = 0;
  double measure_until_s = never_s;
  double stop_s = never_s;  // what is open then stays unfinished
  Record record = Record::summary;
  std::function<void(double share_done)> progress = {};
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

// What happened to one request.
struct RequestRecord {
  double arrival_s = 0;
  double first_token_s = 0;  // when it was out
  double last_token_s = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;  // that it gets: less than it asked for where there is no room for them
  std::int64_t emitted = 0;
  std::int32_t request_class = 0;  // index into the workload's
  bool refused = false;            // the queue was full, or it fits nowhere
  bool finished() const { return !refused && emitted == output_tokens; }
  double ttft_s() const { return first_token_s - arrival_s; }
  double latency_s() const { return last_token_s - arrival_s; }
  // Mean time between tokens; 0 where there is but one.
  double tpot_s() const { return emitted > 1 ? (last_token_s - first_token_s) / static_cast<double>(emitted - 1) : 0; }
};

// Of all judged requests, or of those of one class. Percentiles are of the finished ones; `tpot_s` of those with more
// than one token.
struct RequestSummary {
  std::string name;
  std::int64_t requests = 0, finished = 0, refused = 0, unfinished = 0;
  double slo_attainment = 0;  // finished inside all deadlines of their class, of all
  double tokens_per_s = 0;    // output
  Percentiles ttft_s, tpot_s, latency_s;
};

struct StageUse {
  std::string stage;
  double use = 0;  // share of the measured time in which it computes
  std::int64_t steps = 0;
  double tokens_per_step = 0;
};
struct LinkUse {
  std::string from, to;  // machines; stages inside one
  double use = 0;
  double bytes = 0;
};
// Routes with one scheduler and one block table.
struct QueueUse {
  std::vector<std::string> routes;
  double waiting_mean = 0;
  std::int64_t waiting_peak = 0;
  double kv_mean = 0, kv_peak = 0;  // shares of the blocks
};

// For a picture of the whole: what every stage and link did when.
struct Timeline {
  struct Span {
    std::uint32_t track = 0;
    double start_s = 0, duration_s = 0;
    std::uint64_t step = 0;  // 0: keys and values that move from prefill to decode
    double tokens = 0;
    std::uint32_t sequences = 0;
  };
  struct Sample {
    std::uint32_t queue = 0;
    double time_s = 0;
    std::int64_t waiting = 0, running = 0;
    std::int64_t kv_blocks = 0;  // in use
  };
  struct Mark {
    double time_s = 0;
    std::string what;
  };
  std::vector<std::string> tracks;  // stages, then links
  std::vector<std::string> queues;
  std::size_t stages = 0;
  std::vector<Span> spans;
  std::vector<Sample> samples;
  std::vector<Mark> marks;
};

struct SimResult {
  RequestSummary all;
  std::vector<RequestSummary> classes;
  double measured_s = 0;
  std::int64_t preemptions = 0;  // sequences that gave their blocks back and were recomputed
  std::int64_t restarts = 0;     // requests that restarted on another route after a fault
  double cached_share = 0;       // of the prompts' tokens: were there
  std::int64_t events = 0;
  std::vector<StageUse> stages;
  std::vector<LinkUse> links;
  std::vector<QueueUse> queues;
  std::vector<RequestRecord> records;  // of all requests, in order of arrival
  std::optional<Timeline> timeline;
};

// `requests` in order of arrival; their classes are the plan's workload's, whose deadlines judge them. The plan is
// sound (verify). Throws an input error where a class or a device is unknown, arrivals run backwards, or the profile
// says that a stage cannot be.
SimResult simulate(const ServePlan& plan, const std::vector<TraceRequest>& requests, const SimOptions& options);

}  // namespace motley
