// Where the threads that make connections leave them for the thread that drives the transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/epoch.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {

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

}  // namespace motley
