#include "motley/workers/control_connection.hpp"

#include <fcntl.h>

namespace motley {
namespace {

ByteStream stream_of(int socket) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  return ByteStream(FileDescriptor(socket));
}

}  // namespace

ControlConnection::ControlConnection(int socket) : ControlConnection(stream_of(socket)) {}

std::optional<Message> ControlConnection::receive() {
  const auto bytes = stream_.receive();
  if (!bytes) return std::nullopt;
  return decode(*bytes);
}

std::vector<Message> receive_messages(MessageStream& stream) {
  std::vector<Message> messages;
  for (ReadingTurn turn(stream); const auto bytes = turn.next();) messages.push_back(decode(*bytes));
  return messages;
}

}  // namespace motley
