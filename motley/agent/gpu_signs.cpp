#include "motley/agent/gpu_signs.hpp"

#include <fmt/format.h>

namespace motley {
namespace {

constexpr const char* until_restart = "it is used again once the agent is started again";

GpuVerdict needs_reset(const std::string& sign) {
  return {GpuState::needs_reset, fmt::format("the driver asks for a reset of the GPU ({})", sign)};
}
GpuVerdict is_gone(const std::string& sign) {
  return {GpuState::gone, fmt::format("the driver has lost the GPU ({}): {}", sign, until_restart)};
}

// nvmlDeviceGpuRecoveryAction_t. Draining peer traffic (3) and recovering an NVLink domain (5) leave the GPU usable.
GpuVerdict verdict_on_action(unsigned action) {
  const std::string sign = fmt::format("recovery action {}", action);
  switch (action) {
    case 1:  // reset
    case 4:  // drain and reset
    case 6:  // reset of the bus
      return needs_reset(sign);
    case 2:  // restart of the node
    case 7:  // of the system
      return {GpuState::gone, fmt::format("the driver asks for a restart of the machine ({})", sign)};
    default: return {};
  }
}

// By NVIDIA's list of errors. All others (13, 31, 43, 45, 94 and more) end the program that caused them, alone.
GpuVerdict verdict_on_error(unsigned long long xid, bool remap_pending) {
  const std::string sign = fmt::format("Xid {}", xid);
  switch (xid) {
    case 48:   // uncorrectable error of memory
    case 74:   // NVLink
    case 95:   // uncontained error of memory
    case 119:  // the GPU's own processor does not answer
      return needs_reset(sign);
    case 63:  // rows of memory are to be replaced
    case 64: return remap_pending ? needs_reset(sign) : GpuVerdict();
    case 79: return is_gone(sign);
    default: return {};
  }
}

}  // namespace

GpuVerdict verdict_on(const GpuSigns& signs) {
  if (signs.answer == NvmlAnswer::gpu_is_lost) return is_gone("it does not answer");
  GpuVerdict worst = signs.answer == NvmlAnswer::needs_reset ? needs_reset("it does not answer") : GpuVerdict();
  const auto add = [&](GpuVerdict next) {
    if (next.state > worst.state) worst = std::move(next);
  };
  if (signs.recovery_action)
    add(verdict_on_action(*signs.recovery_action));
  else
    for (const unsigned long long xid : signs.critical_errors) add(verdict_on_error(xid, signs.remap_pending));
  return worst;
}

GpuRelease::Step GpuRelease::look(const std::vector<unsigned>& listed, std::int64_t free_bytes, Instant now) {
  left_.clear();
  for (const unsigned process : listed)
    if (processes_.contains(process)) left_.insert(process);
  if (free_bytes_ != free_bytes) {
    free_bytes_ = free_bytes;
    still_since_ = now;
  }
  if (left_.empty() && seconds_between(still_since_, now) >= still_s) return Step::released;
  return seconds_between(begun_, now) >= most_s ? Step::given_up : Step::waits;
}

}  // namespace motley
