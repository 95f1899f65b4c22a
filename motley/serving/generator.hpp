// What answers requests, as those see it that ask: a Driver, or in tests what stands in for one.
#pragma once

#include <cstdint>

#include "motley/serving/driver_status.hpp"
#include "motley/serving/requests.hpp"

namespace motley {

// Safe to use from several threads.
class Generator {
 public:
  virtual ~Generator() = default;
  // Returns the request's id. Throws: input error (prompt empty, out of vocabulary, or longer than context or KV room),
  // limit error (queue full), peer error (deployment failed).
  virtual std::uint64_t generate(GenerateRequest request) = 0;
  // The request ends with an event of its own. An id that has ended is not an error.
  virtual void cancel(std::uint64_t id) = 0;
  virtual DriverStatus status() const = 0;
  // Another plan for the same model is to take effect, once its workers are prepared: steps under way end, the workers
  // are replaced or launched again, and the requests go on where they were, with the tokens that they would have had;
  // new ones are accepted meanwhile. Returns at once: status() tells how far it is. Throws an input error for a plan
  // that cannot be served here, a peer error when the deployment has failed.
  virtual void change_plan(ServePlan plan) = 0;
};

}  // namespace motley
