// A simulation for people, for machines, and as a picture.
#pragma once

#include <string>

#include "motley/base/value.hpp"
#include "motley/sim/simulate.hpp"

namespace motley {

std::string sim_report(const SimResult& result);

// `requests`, `slo_attainment`, `ttft_s`, `tpot_s`, `latency_s` as {p50, p90, p99}, `tokens_per_s`, `stages`, ...:
// docs/concepts/simulator.md.
Value sim_json(const SimResult& result);

// JSON in Chrome's trace event format, which Perfetto and chrome://tracing open: a track per stage and per link,
// counters per queue, a mark per fault.
std::string chrome_trace(const Timeline& timeline);

}  // namespace motley
