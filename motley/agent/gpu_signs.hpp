// What NVIDIA's driver says of a GPU, and whether that can be used.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/nvml.hpp"

namespace motley {

struct GpuSigns {
  NvmlAnswer answer = NvmlAnswer::done;               // to a question about its memory
  std::optional<unsigned> recovery_action = {};       // nvmlDeviceGpuRecoveryAction_t; none: the driver does not tell
  std::set<unsigned long long> critical_errors = {};  // numbers of Xid, so far
  bool remap_pending = false;                         // rows of its memory are replaced at its next reset
};

enum class GpuState {
  works,
  needs_reset,  // until the signs are others
  gone,         // until the agent is started again
};
struct GpuVerdict {
  GpuState state = GpuState::works;
  std::string cause = {};  // for people; empty where it works
};
// The number of an error decides only where the driver names no action: the same number may ask for different ones.
GpuVerdict verdict_on(const GpuSigns& signs);

// The wait for a GPU's memory after processes on it have ended: until none of them is listed there and what is free has
// not changed for a moment, or for so long that nothing more is expected.
class GpuRelease {
 public:
  static constexpr double still_s = 0.2, most_s = 10;

  enum class Step { waits, released, given_up };

  GpuRelease(std::set<unsigned> processes, Instant now) : processes_(std::move(processes)), begun_(now) {}

  // What is there now.
  Step look(const std::vector<unsigned>& listed, std::int64_t free_bytes, Instant now);
  // Of those that were waited for, the ones that were listed at the last look.
  const std::set<unsigned>& left() const { return left_; }

 private:
  std::set<unsigned> processes_, left_;
  Instant begun_;
  std::optional<std::int64_t> free_bytes_;
  Instant still_since_;
};

}  // namespace motley
