// How the members of one epoch exchange frames: the one seam between collectives and networks. A transport belongs to
// one epoch and to the thread that drives it; only wake() may be called by others.
//
// What all transports promise: a frame that send() has taken arrives whole, once, and per pair of ranks in an order in
// which no frame overtakes one of an earlier operation; or on_lost() names the peer. A broken connection that can be
// restored is not a loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "motley/comm/transport/collective_frame.hpp"

namespace motley {

// Traffic with one peer since the epoch began. Bytes count payloads and headers.
struct LinkTraffic {
  std::string kind;  // "shm", "tcp", "tls", "local"
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  int streams = 1;
  int reconnects = 0;
  std::int64_t buffer_bytes = 0;  // memory of this side for it, the kernel's not counted
  bool operator==(const LinkTraffic&) const = default;
};

// Who takes what arrives. Nothing here may throw.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  enum class Verdict {
    taken,
    later  // not now: the frame stays with the transport, what follows it on its stream waits, and it is offered again
  };
  // Where the payload of `frame` may be written at once, exactly frame.length bytes; empty: wherever the transport
  // likes. on_frame() follows with that very span, unless the connection breaks before it is full.
  virtual std::span<std::byte> place(int /*peer*/, const CollectiveFrame& /*frame*/) noexcept { return {}; }
  // `payload` is the transport's memory, or what place() gave; it lasts until the call returns.
  virtual Verdict on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) noexcept = 0;
  // The peer cannot be reached any more, or has sent what no member sends; `cause` says it in words.
  virtual void on_lost(int peer, const std::string& cause) noexcept = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // For data. Copies header and payload, at most largest_payload_bytes. False: no room now, nothing was taken; or the
  // peer is lost.
  virtual bool send(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) = 0;
  // Tells all peers that this rank has given the epoch up and why, past everything that waits on the way; they take it
  // as a frame of kind revoke. Does not wait; poll() and flushed() see it through as far as that goes.
  virtual void revoke(const CollectiveFrame& frame, const std::string& cause) = 0;
  // Moves what can be moved without waiting. True: something was moved.
  virtual bool poll(FrameSink& sink) = 0;
  // Sleeps until there may be something for poll() to do or room where send() found none, until wake(), or for
  // `seconds`. Spins for a moment first, where that pays.
  virtual void wait(double seconds) = 0;
  // Ends the current wait(), or the next one. From any thread.
  virtual void wake() = 0;
  // Everything that send() took is on its way, or the peer is lost.
  virtual bool flushed() const = 0;
  // The clock of every deadline above this interface; it may be virtual.
  virtual double now_s() const = 0;
  virtual const LinkTraffic& traffic(int peer) const = 0;
};

}  // namespace motley
