// A connection that carries control messages, one per length-prefixed frame, without waiting.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "motley/comm/membership/membership_messages.hpp"
#include "motley/comm/net/byte_stream.hpp"

namespace motley {

class ControlStream {
 public:
  explicit ControlStream(ByteStream stream) : stream_(std::move(stream)) {}

  // Takes the message; what the network does not take now goes with flush(). Both throw a peer error where the
  // connection is closed.
  void send(const ControlMessage& message);
  void flush();
  // Everything that send() took has been given to the network.
  bool flushed() const { return written_ == outbox_.size(); }
  // The whole messages that have arrived. Throws a peer error with the cause where the connection is closed and nothing
  // whole is left, or where a message is malformed or longer than `largest_bytes`.
  std::vector<ControlMessage> receive(std::size_t largest_bytes = max_control_bytes);

  int descriptor() const { return stream_.descriptor(); }
  const ByteStream& bytes() const { return stream_; }
  // What poll() should wait for.
  short events() const;

 private:
  ByteStream stream_;
  std::string outbox_, inbox_;
  std::size_t written_ = 0;
};

}  // namespace motley
