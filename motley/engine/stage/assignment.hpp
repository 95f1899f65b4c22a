// What a plan asks of one device. Plain values: no tensors, no connections.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

// The place of a device's stage on one route.
struct RoutePlace {
  std::size_t number = 0;           // among the route's stages, from 0
  const Stage* previous = nullptr;  // null: the stage is the route's first
  const Stage* next = nullptr;      // null: its last
  DType received_in = DType::fp32;  // the type of the activations that come from `previous`
  DType sent_in = DType::fp32;      // of those that go to `next`
};

// Points into the plan, which must outlive it.
struct Assignment {
  const Stage* stage = nullptr;
  int rank = 0;
  int degree = 1;
  TierMemory memory;                              // of its own
  std::int64_t host_bytes = 0;                    // in its host's memory, where its stage offloads
  std::vector<std::optional<RoutePlace>> places;  // by route; empty: the route does not pass here
};

// Throws an input error where the device is in no stage or in several, where a route crosses the stage in a way that
// the engine does not run, or where the device's memory does not hold its part: then with the arithmetic.
Assignment assignment_of(const ServePlan& plan, const std::string& device);

// Less memory is free than the plan counts with: the device's stage may have keys and values of this many tokens.
class MemoryShort : public Error {
 public:
  MemoryShort(const std::string& message, std::int64_t tokens)
      : Error(ErrorCode::environment, message), kv_tokens(tokens) {}
  std::int64_t kv_tokens;
};

// What the device's part takes without its reserve, its host's memory counted.
std::int64_t needed_bytes(const Assignment& planned);

// Throws where less memory is free than the device's part takes: MemoryShort where it would hold fewer keys and values,
// at least those of a whole step, and otherwise an environment error.
void check_free_memory(const ServePlan& plan, const std::string& device, const Assignment& planned,
                       std::int64_t free_bytes);

// An allocation failed: throws the same.
[[noreturn]] void fail_without_memory(const ServePlan& plan, const std::string& device, const Assignment& planned);

// Throws an input error where a device holds more than its plan predicts.
void check_allocation(const std::string& device, const TierMemory& planned, const RankMemory& allocated);

}  // namespace motley
