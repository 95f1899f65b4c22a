// Descriptions of machines of which nothing is measured yet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/nvidia.hpp"
#include "motley/cluster/cluster.hpp"

namespace motley {

// This machine with this many alike devices.
ClusterDescription one_machine(int workers, std::int64_t memory_bytes, const std::string& name = "here");

// This machine as one device, with half of its memory.
ClusterDescription this_machine();

// A machine of these GPUs in their order, a type for each name, with what is free now of the one that has least.
ClusterDescription machine_of(const std::vector<NvidiaGpu>& gpus);

}  // namespace motley
