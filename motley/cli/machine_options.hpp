// What the verbs for machines share: `up` and `join`.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/agent/agent_messages.hpp"

namespace motley::cli {

inline constexpr const char* no_gpus = "none";

struct MachineOptions {
  std::string memory, name;
  std::string gpus;         // slots of those that are offered, or no_gpus; empty: all that can be used
  bool processor = false;   // also where GPUs are offered
  int processor_parts = 0;  // 0: not asked for, so one where it is offered
  int threads = 0;          // of each device; 0: an equal share of all that may run
};

// --memory, --name, --devices, --processor, --processor-parts, --device-threads.
void add_machine_options(CLI::App& verb, MachineOptions& options);

// --name, or the host's name made to fit. Throws an input error for one that no machine can have.
std::string machine_name(const MachineOptions& options);
// Throws an input error for what no machine can offer, as far as that is known without looking for its GPUs.
void check_machine_options(const MachineOptions& options);

// This machine's devices: its GPUs, as `worker_program` lists them; and its processor, where it has none that can be
// used, or where that is asked for: equal parts of it and of --memory, in the slots after those of GPUs. `state`, a
// folder, keeps the slots and what was measured of the processor the first time. `report` tells, as an agent does, why
// a GPU is not offered. Throws an input error for what this machine does not have, and as list_gpus() does.
std::vector<OfferedDevice> offered_devices(
    const MachineOptions& options, const std::filesystem::path& state, const std::filesystem::path& worker_program,
    const std::function<void(const std::string& what, const std::string& detail)>& report);

}  // namespace motley::cli
