// For the tests of this module and those above it: plans over toy devices.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/workers/launch.hpp"

namespace motley {

// One route per list of degrees, its stages sharing the layers of the tales model about equally; devices box/0, box/1,
// ... of 64 MiB each, in order.
inline ServePlan toy_plan(const std::vector<std::vector<int>>& routes, std::int64_t kv_tokens = 1024,
                          const std::string& machine = "box") {
  ServePlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.workload = default_workload();
  plan.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  int devices = 0;
  for (const auto& degrees : routes) {
    Route route{.id = "r" + std::to_string(plan.routes.size()), .path = {}};
    const auto stages = std::ssize(degrees);
    for (std::ptrdiff_t s = 0; s < stages; ++s) {
      Stage stage{.id = route.id + "/s" + std::to_string(s),
                  .layers = {8 * s / stages, 8 * (s + 1) / stages},
                  .devices = {},
                  .shares = {}};
      stage.embedding = s == 0;
      stage.head = s + 1 == stages;
      stage.kv_tokens = kv_tokens;
      stage.weight_type = stage.kv_type = DType::fp32;
      for (int rank = 0; rank < degrees[static_cast<std::size_t>(s)]; ++rank)
        stage.devices.push_back(machine + "/" + std::to_string(devices++));
      route.path.push_back({stage.id, stage.layers});
      plan.stages.push_back(stage);
    }
    plan.routes.push_back(route);
  }
  const std::string cluster = "format = \"motley.cluster/1\"\nname = \"toys\"\n[[machine]]\nname = \"" + machine +
                              "\"\ndevices = [\"toy*" + std::to_string(devices) +
                              "\"]\n[[device_type]]\nname = \"toy\"\nvendor = \"cpu\"\nmemory = \"64 MiB\"\n"
                              "memory_bandwidth = \"8 GB/s\"\nflops = { fp32 = \"40 GFLOP/s\" }\nreserve = \"0 B\"\n"
                              "[network]\nwithin_machine = { latency = \"20 us\", bandwidth = \"2 GB/s\" }\n";
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(cluster, "toys.toml"), "toys.toml"), "toys.toml");
  return plan;
}

// The same stages on the devices of another plan's cluster, in this order.
inline ServePlan placed_on(ServePlan plan, const ServePlan& other, const std::vector<std::string>& devices) {
  plan.cluster = other.cluster;
  std::size_t next = 0;
  for (Stage& stage : plan.stages)
    for (std::string& device : stage.devices) device = devices.at(next++);
  for (const std::string& device : worker_devices(other))
    if (std::ranges::find(devices, device) == devices.end()) plan.unused.push_back({device, "left out"});
  return plan;
}

// The programs are in the test's folder.
inline std::filesystem::path program_beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace motley
