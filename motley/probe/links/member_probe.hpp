// Measures a group of members: carries the exchanges of probe/fit/probe_schedule.hpp over their communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "motley/comm/collective/communicator.hpp"
#include "motley/probe/fit/member_fit.hpp"

namespace motley {

struct MemberProbeOptions {
  double seconds = 10;       // of traffic, about
  bool pairs_alone = false;  // latency and bandwidth of every pair, and nothing that takes more members
  std::string settings;      // whatever must be the same for all members, in words: it is compared, not read
  std::string date;
  std::function<void(const std::string& what, double elapsed_s)> report;
};

struct MemberProbeResult {
  MemberMeasurements measured;
  std::vector<std::int64_t> memory_bytes;  // of every member's machine
};

// All members call it with the same seconds and settings, and get the same result. Throws a peer error that names the
// member where one is lost, has other settings, or sends what is not a measurement.
MemberProbeResult probe_members(Communicator& group, const MemberProbeOptions& options);

// A cluster of one device per machine, with what is known of it: its memory. `names`: of the machines; empty: member-0,
// member-1, ...
Cluster described_by_members(const std::vector<std::string>& addresses, const std::vector<std::string>& names,
                             const std::vector<std::int64_t>& memory_bytes);

}  // namespace motley
