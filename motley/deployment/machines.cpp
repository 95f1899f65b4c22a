#include "motley/deployment/machines.hpp"

#include <fmt/format.h>

#include "motley/base/units.hpp"

namespace motley {

std::string describe(const MachineLink& link) {
  return fmt::format("{} to {}: {}, {}/s", link.from, link.to, human_seconds(link.latency_s),
                     human_bytes(link.bytes_per_s));
}

std::set<std::string> machines_of(const ServePlan& plan) {
  std::set<std::string> names;
  for (const Stage& stage : plan.stages)
    for (const std::string& device : stage.devices) names.insert(machine_of(device));
  return names;
}

}  // namespace motley
