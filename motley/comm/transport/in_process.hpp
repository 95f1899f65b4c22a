// Ranks that are threads of one process: frames pass through queues. The plainest transport there is.
#pragma once

#include <memory>
#include <string>

#include "motley/comm/transport/transport.hpp"

namespace motley {

// The fabric must outlive the transports, which may be used from one thread each.
class InProcessFabric {
 public:
  explicit InProcessFabric(int ranks);
  ~InProcessFabric();
  std::unique_ptr<Transport> transport(int rank);
  // As if the rank had died: all others lose it, and it loses all others.
  void lose(int rank, const std::string& cause);

 private:
  struct State;
  class Link;
  std::unique_ptr<State> state_;
};

}  // namespace motley
