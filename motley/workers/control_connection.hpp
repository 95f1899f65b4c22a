// A connection that carries the messages of worker_messages.hpp, one per frame.
#pragma once

#include <optional>
#include <vector>

#include "motley/comm/net/message_stream.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

// The worker's end, which waits. Any number of threads may send while one receives.
class ControlConnection {
 public:
  explicit ControlConnection(int socket);  // takes ownership
  explicit ControlConnection(ByteStream stream) : stream_(std::move(stream), max_message_bytes) {}

  // Throws a peer error where the connection breaks.
  void send(const Message& message) { stream_.send(encode(message)); }
  // Waits. Empty at the orderly end of the connection; throws a peer error on a broken or malformed one.
  std::optional<Message> receive();
  int descriptor() const { return stream_.descriptor(); }

 private:
  BlockingMessageStream stream_;
};

// The driver's end, which does not: the messages that have arrived, of one turn (ReadingTurn). Throws as receive()
// does.
std::vector<Message> receive_messages(MessageStream& stream);

}  // namespace motley
