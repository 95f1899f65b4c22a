// The transport over sockets and shared memory: one edge per peer, one place to sleep.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "motley/comm/transport/arrivals.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

struct MeshOptions {
  std::shared_ptr<LinkArrivals> arrivals;
  int most_streams = 16;
  double patience_s = 5;
  // Asks for a connection to the peer, from a thread that does not wait for it.
  std::function<void(int peer, LinkPurpose purpose, std::uint16_t stream, const std::string& word)> dial;
  // Told when the transport is gone; takes its sockets, which may still have something to deliver.
  std::function<void(std::vector<FileDescriptor>)> closed;
};

class Mesh : public Transport {
 public:
  // Takes what has arrived; the peers that are still to be connected.
  virtual std::vector<int> unconnected() = 0;
  // A refusal that makes the mesh impossible: peer and cause; -1 where there is none.
  virtual std::pair<int, std::string> refusal() const = 0;
};
std::unique_ptr<Mesh> make_mesh(MeshOptions options);

}  // namespace motley
