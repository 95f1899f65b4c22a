#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/workers/messages.hpp"

namespace motley {
namespace {

[[noreturn]] void broken(std::string_view doing, int code) {
  throw Error(ErrorCode::peer, fmt::format("the control connection broke while {}: {}", doing, std::strerror(code)));
}

// True when the call that failed is to be tried again; waits first where the descriptor does not block by itself.
bool again(int descriptor, short events) {
  if (errno == EINTR) return true;
  if (errno != EAGAIN) return false;
  pollfd waiting{descriptor, events, 0};
  return ::poll(&waiting, 1, -1) >= 0 || errno == EINTR;
}

void write_all(int descriptor, std::array<iovec, 2> parts) {
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  while (header.msg_iovlen > 0) {
    const ssize_t sent = ::sendmsg(descriptor, &header, MSG_NOSIGNAL);
    if (sent < 0) {
      if (again(descriptor, POLLOUT)) continue;
      broken("sending", errno);
    }
    auto rest = static_cast<std::size_t>(sent);
    while (header.msg_iovlen > 0 && rest >= header.msg_iov->iov_len) {
      rest -= header.msg_iov->iov_len;
      ++header.msg_iov;
      --header.msg_iovlen;
    }
    if (header.msg_iovlen > 0) {
      header.msg_iov->iov_base = static_cast<char*>(header.msg_iov->iov_base) + rest;
      header.msg_iov->iov_len -= rest;
    }
  }
}

// Returns how many bytes came before the end of the stream: `size`, or fewer.
std::size_t read_all(int descriptor, char* out, std::size_t size) {
  std::size_t have = 0;
  while (have < size) {
    const ssize_t received = ::recv(descriptor, out + have, size - have, 0);
    if (received == 0) break;
    if (received < 0) {
      if (again(descriptor, POLLIN)) continue;
      broken("receiving", errno);
    }
    have += static_cast<std::size_t>(received);
  }
  return have;
}

}  // namespace

struct ControlConnection::Locks {
  std::mutex send, receive;
};

ControlConnection::ControlConnection(int descriptor) : descriptor_(descriptor), locks_(std::make_unique<Locks>()) {}

ControlConnection::~ControlConnection() { ::close(descriptor_); }

void ControlConnection::send(const Message& message) {
  std::string bytes = encode(message);
  auto length = static_cast<std::uint32_t>(bytes.size());
  const std::lock_guard lock(locks_->send);
  write_all(descriptor_, {iovec{&length, sizeof length}, iovec{bytes.data(), bytes.size()}});
}

// Reads no further than the message's end, so that poll() on the descriptor tells the truth about what is left.
std::optional<Message> ControlConnection::receive() {
  const std::lock_guard lock(locks_->receive);
  std::uint32_t length = 0;
  const std::size_t have = read_all(descriptor_, reinterpret_cast<char*>(&length), sizeof length);
  if (have == 0) return std::nullopt;
  if (have < sizeof length) throw Error(ErrorCode::peer, "the control connection ended inside a message");
  if (length > max_message_bytes)
    throw Error(ErrorCode::peer,
                fmt::format("malformed message: a length of {} bytes, more than {}", length, max_message_bytes));
  // The buffer grows with what has really arrived.
  constexpr std::size_t piece_bytes = std::size_t{1} << 20;
  buffer_.clear();
  while (buffer_.size() < length) {
    const std::size_t start = buffer_.size();
    const std::size_t piece = std::min(piece_bytes, length - start);
    buffer_.resize(start + piece);
    if (read_all(descriptor_, buffer_.data() + start, piece) < piece)
      throw Error(ErrorCode::peer, "the control connection ended inside a message");
  }
  return decode(buffer_);
}

}  // namespace motley
