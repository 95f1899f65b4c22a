// One peer as a transport of sockets and shared memory sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/transport/collective_frame.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

class Edge {
 public:
  virtual ~Edge() = default;
  virtual bool send(const CollectiveFrame& frame, std::span<const std::byte> payload) = 0;
  // Past everything that waits on the way.
  virtual void revoke(const CollectiveFrame& frame, const std::string& cause) = 0;
  // Moves a few frames; false where there was nothing to move. `now_s` is for what depends on time.
  virtual bool poll(FrameSink& sink, double now_s) = 0;
  // A quick look: poll() would find something, as far as that can be told without a system call.
  virtual bool looks_ready() const = 0;
  // Announced to the peer, which rings the doorbell from now on; then looks_ready() is asked once more.
  virtual void fall_asleep() {}
  virtual void wake_up() {}
  virtual bool flushed() const = 0;
  // What epoll said about one of the descriptors that the edge has registered.
  virtual void on_event(std::uint32_t part, std::uint32_t events) = 0;
  // Connections that may still have something to deliver when the edge goes.
  virtual std::vector<FileDescriptor> release() { return {}; }
  const LinkTraffic& traffic() const { return traffic_; }

 protected:
  LinkTraffic traffic_;
};

// A descriptor in an epoll set is known by its peer and by the edge's own number for it.
void watch(int epoll, int descriptor, int peer, std::uint32_t part);

// ---- shared memory ----

// What is enough for peers that take frames as they come.
constexpr std::int64_t shared_edge_ring_bytes = 1 << 20;
// Memory for both directions, sealed in size; zero is empty. A sender is ahead of the receiver by `window_bytes` at
// most (rounded up to a power of two, at most 64 MiB); pages are taken as they are first used.
FileDescriptor make_shared_edge_memory(std::int64_t window_bytes = shared_edge_ring_bytes);
// `side` 0 or 1, other than the peer's. `doorbell` is the eventfd that wakes the peer. `life` is a connection whose end
// means the peer's. Throws a peer error where the memory is not as it should be.
std::unique_ptr<Edge> open_shared_edge(int peer, int side, const FileDescriptor& memory, FileDescriptor doorbell,
                                       FileDescriptor life, int epoll);

// ---- streams ----

struct StreamEdgeOptions {
  int peer = 0;
  bool dials = false;  // this side opens the first stream, and opens it again; the other the second, and so on in turn
  int most_streams = 16;
  double patience_s = 5;  // how long a broken connection may take to come back
  int epoll = -1;
  // Asks for a stream of this number, or whether the peer is still there (probe). The answer comes by adopt() or
  // refused(), or not at all.
  std::function<void(LinkPurpose, std::uint16_t stream)> dial;
  // Tells the peer on a connection of its own that the epoch is given up here.
  std::function<void(const std::string& cause)> revoke;
};

class StreamEdge : public Edge {
 public:
  // A new stream, or one that takes the place of a broken one of the same number.
  virtual void adopt(std::uint16_t stream, ByteStream connection) = 0;
  // No such stream will come: where it was to replace a broken one, the peer is lost.
  virtual void refused(std::uint16_t stream, const std::string& cause) = 0;
  virtual bool connected() const = 0;
};
std::unique_ptr<StreamEdge> open_stream_edge(StreamEdgeOptions options);

}  // namespace motley
