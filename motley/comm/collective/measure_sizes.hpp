// How long collectives take between the members of a group, by size: what `motley group bench` shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/comm/collective/communicator.hpp"

namespace motley {

struct SizesToMeasure {
  std::string operation = "all-reduce";  // one of measured_operations()
  CollectiveElement element = CollectiveElement::fp32;
  double from_bytes = 1024, to_bytes = 64 << 20;
  double factor = 4;     // from one size to the next
  double seconds = 0.5;  // for each
};

struct MeasuredSize {
  std::int64_t bytes = 0;  // of the buffer; of reduce-scatter and all-gather it is the whole vector
  int repeats = 0;
  double time_s = 0;                  // of one call, on the slowest rank
  std::int64_t wrong = 0;             // elements with another value than the sum
  int streams = 1;                    // to the peer with most
  std::int64_t peak_extra_bytes = 0;  // of this rank so far, without the buffer
};

std::vector<std::string> measured_operations();

// Bytes on the busiest link per byte of the buffer: by the "bus" bandwidth of nccl-tests, which is the link's where the
// algorithm is perfect.
double bus_factor(const std::string& operation, int ranks);

// All members of the group call it alike. Throws a peer error where a call fails.
std::vector<MeasuredSize> measure_sizes(Communicator& group, const SizesToMeasure& asked);

}  // namespace motley
