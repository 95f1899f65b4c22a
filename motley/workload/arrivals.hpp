// Requests drawn from a workload: when they come, of which class, how long they are.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/workload/workload.hpp"

namespace motley {

struct ArrivalOptions {
  double duration_s = 0;      // requests that arrive before; 0: as many as `requests` says
  std::int64_t requests = 0;  // at most this many; 0: no such limit. Of a trace, both may be 0: all of it
  double rate_scale = 1;      // times the workload's rates (and the speed of a trace)
  std::uint64_t seed = 0;
};

// The same requests, this many a second of all classes together; equally among them where they have no rates. Throws an
// input error for a trace, which has its own arrivals.
Workload with_rate(Workload workload, double rate_per_s);

// In order of arrival. Every class arrives by a process of its own, at its own rate:
//   constant  one every 1 / rate, from 0 on
//   poisson   gaps exponential with mean 1 / rate
//   gamma     gaps gamma-distributed with mean 1 / rate and the workload's coefficient of variation
//   trace     the requests of the file, with their own lengths
// Lengths: the mean where nothing else is known; a lognormal where p50 or p99 are (its shape from them, its mean the
// given one); rows of the trace file where there is one, both lengths from one row if both name the same file.
//
// The same options give the same requests; a class's lengths do not depend on the other classes or on the rates.
// Throws an input error where a class has no rate, or neither duration nor number bound the draw.
std::vector<TraceRequest> draw_requests(const Workload& workload, const ArrivalOptions& options);

// The lognormal through what a length says: exp(mu + sigma z) with z normal; sigma 0 where only the mean is known.
struct LogNormal {
  double mu = 0;
  double sigma = 0;
};
LogNormal lognormal_of(const Length& length);

}  // namespace motley
