// The transport over sockets and shared memory: one edge per peer, one place to sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/epoch.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

// Where the threads that make connections leave them for the thread that drives the transport.
struct LinkArrival {
  int peer = -1;
  LinkPurpose purpose = LinkPurpose::stream;
  std::uint16_t stream = 0;
  ByteStream connection = {};
  FileDescriptor memory = {}, doorbell = {};  // of shared memory
  int side = 0;
  std::string refusal = {};     // instead of a connection: why there will be none
  std::string revocation = {};  // instead of a connection: why the peer has given the epoch up
};

class LinkArrivals {
 public:
  LinkArrivals(Epoch epoch, int rank) : epoch_(std::move(epoch)), rank_(rank) {}
  const Epoch& epoch() const { return epoch_; }
  int rank() const { return rank_; }
  const Wakeup& doorbell() const { return doorbell_; }

  void put(LinkArrival arrival);
  // Why the peer has not been reached so far; for messages.
  void note(int peer, const std::string& cause);
  std::string noted(int peer);
  bool any() const { return any_.load(std::memory_order_acquire); }
  std::vector<LinkArrival> take();

 private:
  const Epoch epoch_;
  const int rank_;
  const Wakeup doorbell_;  // the thread that waits for frames or connections sleeps on it
  std::mutex mutex_;
  std::vector<LinkArrival> waiting_;
  std::map<int, std::string> notes_;
  std::atomic<bool> any_{false};
};

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
