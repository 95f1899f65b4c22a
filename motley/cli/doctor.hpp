// What `motley doctor` finds.
#pragma once

#include <string>
#include <vector>

namespace motley::cli {

enum class State { ok, warn, missing };

struct Finding {
  std::string what;
  State state = State::ok;
  std::string detail;
};

// What `motley up` and `join` would offer of this machine's GPUs, as a worker sees them, by the numbers that --devices
// takes. Nothing where there is no sign of a GPU.
std::vector<Finding> offers_of_gpus();

}  // namespace motley::cli
