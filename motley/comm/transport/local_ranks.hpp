// The ranks of a group as processes of this machine.
#pragma once

#include <functional>
#include <string>

#include "motley/comm/net/epoch.hpp"
#include "motley/comm/transport/fabric.hpp"

namespace motley {

// This process is rank 0, and forks the others, which end with it: to be called before it has any thread. Each listens
// on an address of its own by these options, and calls `run` once all are known. Throws what `run` throws here; another
// rank prints it.
void run_local_ranks(int ranks, const FabricOptions& options, const std::string& group,
                     const std::function<void(Fabric& fabric, const Epoch& epoch, int rank)>& run);

}  // namespace motley
