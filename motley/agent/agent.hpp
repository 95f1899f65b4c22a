// The agent of a machine: a member of a deployment. It proves who it is, says what the machine offers, fetches the
// weights that its workers read, starts and watches them, and ends them when the driver says so, or has been gone for
// longer than its lease.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/agent/agent_messages.hpp"
#include "motley/agent/gpu_watch.hpp"
#include "motley/agent/invitation.hpp"
#include "motley/workers/worker_handle.hpp"

namespace motley {

struct AgentOptions {
  Invitation invitation;
  std::string name;  // of this machine, told from all others
  std::vector<OfferedDevice> devices;
  GpuWatchOptions watch = {};            // the devices that are GPUs are added
  std::filesystem::path worker_program;  // motley-worker, in motley's folder
  std::filesystem::path cache;           // of weights
  std::uint64_t cache_bytes = std::uint64_t{256} << 30;
  std::filesystem::path state;   // a folder that tells an agent that is started again from another machine's
  std::filesystem::path model;   // the model's own folder or GGUF file on this machine, if there is one
  double lease_s = 30;           // without the driver, until the workers are ended
  double patience_s = killed_s;  // for a worker that was killed to end
  bool relayed = false;          // others reach this machine by the link's relay alone
  std::function<void(const std::string& what, const std::string& detail)> report = {};
};

// Until the deployment ends (true), or `stop`, a descriptor, is readable: then it leaves as planned (false). No worker
// is left behind. Tries again while there is no answer from the driver's addresses. Throws a peer or input error where
// it is refused, or the deployment is not the one expected; an environment error where the cache cannot be written.
bool run_agent(const AgentOptions& options, int stop);

}  // namespace motley
