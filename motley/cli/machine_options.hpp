// What the verbs for machines share: `up` and `join`.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/agent/agent_messages.hpp"

namespace motley::cli {

struct MachineOptions {
  std::string memory, name;
  int devices = 1;
  int threads = 0;  // of each device; 0: an equal share of all that may run
};

// --memory, --name, --devices, --device-threads.
void add_machine_options(CLI::App& verb, MachineOptions& options);

// --name, or the host's name made to fit. Throws an input error for one that no machine can have.
std::string machine_name(const MachineOptions& options);
// --memory, or what is free. Throws an input error where --memory is not a size, or more than there is.
std::int64_t offered_memory_bytes(const MachineOptions& options);
// This machine's devices, equal parts of its processor and of --memory, measured the first time: what `state`, a
// folder, holds of an earlier one is used. Throws as offered_memory_bytes() does.
std::vector<OfferedDevice> offered_devices(const MachineOptions& options, const std::filesystem::path& state);

}  // namespace motley::cli
