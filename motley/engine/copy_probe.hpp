// Measures how fast bytes cross between devices and their host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/workers/copy_list.hpp"

namespace motley {

// Of devices by their names (engine/devices.hpp), one after the other, and of all ordered pairs of them: some 1.5 s
// each. Pinned copies of 16 KiB, whose time is the latency, and of 64 MiB. Throws an input error for a device without
// memory of its own, and an environment error where one cannot be opened.
CopyList probe_copies(const std::vector<std::string>& devices);

enum class CopyWay : std::uint8_t { up, down };

struct CopyTimes {
  double asked_s = 0;  // until the host goes on
  double done_s = 0;   // until the bytes are there, and the host knows
};

// Of one copy, medians of some 0.2 s; `pinned`: the host's memory.
CopyTimes copy_times(const std::string& device, CopyWay way, std::int64_t bytes, bool pinned = true);
// Pinned, both directions for the same time, each by a thread of its own.
CopyRates copy_rates_at_once(const std::string& device, std::int64_t bytes);

}  // namespace motley
