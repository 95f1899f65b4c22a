#include "motley/agent/chunk_service.hpp"

#include <sys/socket.h>

#include "motley/agent/agent_messages.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/net/message_stream.hpp"

namespace motley {
namespace {

constexpr double send_s = 120;  // for a caller to take a chunk

}  // namespace

bool ChunkService::full() const {
  const std::lock_guard lock(mutex_);
  return sockets_.size() >= most_callers_;
}

bool ChunkService::begin(int socket) {
  const std::lock_guard lock(mutex_);
  return !closed_ && sockets_.size() < most_callers_ && sockets_.insert(socket).second;
}

void ChunkService::end(int socket) {
  const std::lock_guard lock(mutex_);
  sockets_.erase(socket);
}

void ChunkService::serve(ByteStream bytes, const std::function<bool()>& welcome) {
  if (!begin(bytes.descriptor())) return;
  MessageStream messages(std::move(bytes), max_agent_message_bytes);
  messages.accept_up_to(max_chunk_request_bytes);
  BlockingMessageStream stream(std::move(messages));
  try {
    while (const auto message = stream.receive()) {
      if (!welcome()) break;
      const std::vector<std::byte> chunk = read_(decode_request(*message).id);
      stream.send({reinterpret_cast<const char*>(chunk.data()), chunk.size()}, deadline_in(send_s));
    }
  } catch (const std::exception&) {
    // The caller tries again, here or elsewhere.
  }
  end(stream.descriptor());  // before another connection can have this number
}

void ChunkService::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
}

}  // namespace motley
