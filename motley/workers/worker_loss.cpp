#include "motley/workers/worker_loss.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "motley/cluster/cluster.hpp"

namespace motley {

WorkerLoss machine_gone(const std::vector<std::string>& devices, const std::string& machine) {
  WorkerLoss loss{Error(ErrorCode::peer, fmt::format("{} is not there", machine)), {}, true};
  std::ranges::copy_if(devices, std::back_inserter(loss.devices),
                       [&](const std::string& device) { return machine_of(device) == machine; });
  return loss;
}

}  // namespace motley
