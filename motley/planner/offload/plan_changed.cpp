#include "motley/planner/offload/plan_changed.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/planner/offload/plan_offload.hpp"

namespace motley {
namespace {

double bytes_in(const std::string& text) {
  try {
    if (const double bytes = parse_quantity(text, Dimension::bytes); bytes > 0) return bytes;
  } catch (const Error&) {  // told below, with an example that suits an option
  }
  throw input_error(fmt::format("--what-if must be a size above 0 B, found \"{}\"", text),
                    "give a number with its unit, as in --what-if \"24 GiB\"");
}

// "host_memory=128 GiB" or "disk.read=5 GB/s", of the plan's machine.
void change_machine(MachineDescription& machine, const std::string& text) {
  const auto equals = text.find('=');
  const std::string key = text.substr(0, equals), value = equals == std::string::npos ? "" : text.substr(equals + 1);
  const std::vector<std::string> keys = {"host_memory", "disk.capacity", "disk.read", "disk.write"};
  if (equals == std::string::npos || std::find(keys.begin(), keys.end(), key) == keys.end())
    throw input_error(fmt::format("--what-if of an offload plan needs a figure of its machine, found \"{}\"", text),
                      did_you_mean(key, keys,
                                   "use host_memory, disk.capacity, disk.read or disk.write, as in "
                                   "--what-if \"disk.read=5 GB/s\""));
  if (key == "host_memory") {
    machine.host_memory_bytes = static_cast<std::int64_t>(bytes_in(value));
    return;
  }
  if (!machine.disk)
    throw input_error(fmt::format("--what-if \"{}\": machine \"{}\" has no disk", text, machine.name),
                      "describe one in the cluster file and plan again");
  if (key == "disk.capacity") {
    machine.disk->capacity_bytes = static_cast<std::int64_t>(bytes_in(value));
    return;
  }
  machine.disk->both_bytes_per_s = 0;
  (key == "disk.read" ? machine.disk->read_bytes_per_s : machine.disk->write_bytes_per_s) =
      parse_quantity(value, Dimension::bytes_per_s);
}

OffloadOptions options_of(const OffloadPlan& plan, const CostOptions& cost) {
  OffloadOptions options{.cost = cost};
  options.device = plan.device;
  options.weight_type = plan.weight_type;
  options.kv_type = plan.kv_type;
  options.block_tokens = plan.block_tokens;
  return options;
}

}  // namespace

OffloadOutcome plan_changed(const OffloadPlan& plan, const std::vector<std::string>& changes, const CostOptions& cost) {
  ClusterDescription description = plan.cluster.description;
  const int device = plan.cluster.find_device(plan.device);
  const int machine = plan.cluster.devices[static_cast<std::size_t>(device)].machine;
  const int described = plan.cluster.machines[static_cast<std::size_t>(machine)].description;
  for (const std::string& change : changes)
    change_machine(description.machines[static_cast<std::size_t>(described)], change);
  const Cluster cluster = resolve(std::move(description), "the cluster with --what-if");
  return plan_offload(cluster, plan.model, plan.workload, options_of(plan, cost));
}

}  // namespace motley
