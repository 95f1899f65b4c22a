// Why workers are not there.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {

// Why the workers of a plan cannot go on, and the devices whose workers were lost; none where the cause lies elsewhere.
struct WorkerLoss {
  Error cause;
  std::vector<std::string> devices = {};
  bool gone = false;     // with them: no worker can be started there for now
  bool at_once = false;  // to start them again would not help: they count as lost now
  // Not lost, but short of memory: the stage of the one that is named may have keys and values of this many tokens.
  std::int64_t kv_tokens = 0;
};

// With the machine those of these devices that are its own.
WorkerLoss machine_gone(const std::vector<std::string>& devices, const std::string& machine);

// The workers of a plan could not be started.
class WorkersNotStarted : public Error {
 public:
  explicit WorkersNotStarted(WorkerLoss why)
      : Error(why.cause.code(), why.cause.what(), why.cause.hint()), loss(std::move(why)) {}
  WorkerLoss loss;
};

}  // namespace motley
