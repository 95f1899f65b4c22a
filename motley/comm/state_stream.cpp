#include "motley/comm/state_stream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::uint32_t frame_magic = 0x3153746D;  // "mtS1"
constexpr std::size_t header_bytes = 12;           // magic, kind, three zeros, length
constexpr std::size_t slice_bytes = std::size_t{64} << 10;

[[noreturn]] void fail(const std::string& what, int cause) {
  throw Error(ErrorCode::peer, fmt::format("{}: {}", what, std::strerror(cause)));
}

sockaddr_in parse_address(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const auto colon = text.rfind(':');
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  if (colon == std::string::npos || std::from_chars(text.data() + colon + 1, end, port).ptr != end ||
      inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1)
    throw input_error(fmt::format("\"{}\" is no address", text), "an IPv4 address and a port, as in 10.0.0.7:4711");
  address.sin_port = htons(port);
  return address;
}

int open_socket() {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (file < 0) fail("cannot open a socket", errno);
  return file;
}

class SocketStateStream final : public StateStream {
 public:
  explicit SocketStateStream(int file) : file_(file) {
    const int yes = 1;
    setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  ~SocketStateStream() override { close(file_); }
  SocketStateStream(const SocketStateStream&) = delete;
  SocketStateStream& operator=(const SocketStateStream&) = delete;

  int descriptor() const override { return file_; }
  std::size_t read(std::span<std::byte> into) override {
    const auto size = recv(file_, into.data(), into.size(), 0);
    if (size == 0 && !into.empty()) throw Error(ErrorCode::peer, "the connection was closed");
    return moved(size);
  }
  std::size_t write(std::span<const std::byte> from) override {
    return moved(send(file_, from.data(), from.size(), MSG_NOSIGNAL));
  }

 private:
  static std::size_t moved(ssize_t size) {
    if (size >= 0) return static_cast<std::size_t>(size);
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) fail("the connection broke", errno);
    return 0;
  }
  int file_;
};

class SocketStateListener final : public StateListener {
 public:
  explicit SocketStateListener(const std::string& address) : file_(open_socket()) {
    const int yes = 1;
    setsockopt(file_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const auto wanted = parse_address(address);
    if (bind(file_, reinterpret_cast<const sockaddr*>(&wanted), sizeof wanted) != 0 || listen(file_, 64) != 0) {
      const int cause = errno;
      close(file_);
      throw Error(ErrorCode::environment, fmt::format("cannot listen at {}: {}", address, std::strerror(cause)));
    }
  }
  ~SocketStateListener() override { close(file_); }
  SocketStateListener(const SocketStateListener&) = delete;
  SocketStateListener& operator=(const SocketStateListener&) = delete;

  int descriptor() const override { return file_; }
  std::string address() const override {
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    getsockname(file_, reinterpret_cast<sockaddr*>(&bound), &length);
    std::array<char, INET_ADDRSTRLEN> host{};
    inet_ntop(AF_INET, &bound.sin_addr, host.data(), host.size());
    return fmt::format("{}:{}", host.data(), ntohs(bound.sin_port));
  }
  std::unique_ptr<StateStream> accept() override {
    const int file = accept4(file_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (file < 0) return nullptr;
    return std::make_unique<SocketStateStream>(file);
  }

 private:
  int file_;
};

}  // namespace

std::unique_ptr<StateListener> listen_for_state(const std::string& address) {
  return std::make_unique<SocketStateListener>(address);
}

std::unique_ptr<StateStream> connect_for_state(const std::string& address) {
  const auto there = parse_address(address);
  auto stream = std::make_unique<SocketStateStream>(open_socket());
  if (connect(stream->descriptor(), reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0 &&
      errno != EINPROGRESS)
    fail("cannot connect to " + address, errno);
  return stream;
}

std::size_t StatePace::allowed(double now_s) {
  if (bytes_per_s_ <= 0) return std::numeric_limits<std::size_t>::max();
  const double most = std::max<double>(slice_bytes, 0.01 * bytes_per_s_);
  if (refilled_s_ > 0) allowance_ = std::min(most, allowance_ + (now_s - refilled_s_) * bytes_per_s_);
  refilled_s_ = now_s;
  return static_cast<std::size_t>(std::max(allowance_, 0.0));
}

void StatePace::spend(std::size_t bytes) {
  if (bytes_per_s_ > 0) allowance_ -= static_cast<double>(bytes);
}

double StatePace::wait_s(double now_s) {
  constexpr double worthwhile_bytes = slice_bytes / 4;
  if (static_cast<double>(allowed(now_s)) >= worthwhile_bytes) return 0;
  return (worthwhile_bytes - allowance_) / bytes_per_s_;
}

void StateConnection::queue(StateFrameKind kind, std::string head, std::span<const std::byte> body,
                            std::shared_ptr<const void> owner) {
  const auto length = static_cast<std::uint32_t>(head.size() + body.size());
  std::array<char, header_bytes> header{};
  std::memcpy(header.data(), &frame_magic, 4);
  header[4] = static_cast<char>(kind);
  std::memcpy(header.data() + 8, &length, 4);
  head.insert(0, header.data(), header.size());
  outgoing_.push_back({std::move(head), body, std::move(owner), 0});
}

std::size_t StateConnection::write_some(StatePace& pace, double now_s) {
  std::size_t total = 0;
  while (!outgoing_.empty()) {
    auto& [head, body, owner, written] = outgoing_.front();
    auto rest =
        written < head.size() ? std::as_bytes(std::span(head)).subspan(written) : body.subspan(written - head.size());
    rest = rest.first(std::min({rest.size(), slice_bytes, pace.allowed(now_s)}));
    const std::size_t size = rest.empty() ? 0 : stream_->write(rest);
    pace.spend(size);
    written += size;
    total += size;
    if (written == head.size() + body.size()) {
      outgoing_.pop_front();
    } else if (size == 0) {
      break;
    }
  }
  return total;
}

void StateConnection::check_header() const {
  std::uint32_t magic = 0, length = 0;
  std::memcpy(&magic, incoming_.data(), 4);
  std::memcpy(&length, incoming_.data() + 8, 4);
  const auto kind = std::to_integer<int>(incoming_[4]);
  if (magic != frame_magic || kind < 1 || kind > 5) throw Error(ErrorCode::peer, "sent what is no frame of a state");
  if (length > largest_bytes_)
    throw Error(ErrorCode::peer, fmt::format("announced a frame of {} bytes, more than {}", length, largest_bytes_));
}

// Up to the end of one frame: the caller takes it before it reads on.
std::size_t StateConnection::read_some(StatePace& pace, double now_s) {
  std::size_t total = 0;
  for (;;) {
    std::size_t frame = header_bytes;
    if (received_ >= header_bytes) {
      std::uint32_t length = 0;
      std::memcpy(&length, incoming_.data() + 8, 4);
      frame += length;
      if (received_ == frame) return total;
    }
    // Memory grows as the bytes prove to be there.
    const std::size_t want = std::min({frame - received_, slice_bytes, pace.allowed(now_s)});
    incoming_.resize(received_ + want);
    const std::size_t size = want == 0 ? 0 : stream_->read(std::span(incoming_).subspan(received_));
    pace.spend(size);
    const bool had_header = received_ >= header_bytes;
    received_ += size;
    total += size;
    if (!had_header && received_ >= header_bytes) check_header();
    if (size == 0) return total;
  }
}

std::optional<StateFrame> StateConnection::take() {
  if (received_ < header_bytes) return std::nullopt;
  std::uint32_t length = 0;
  std::memcpy(&length, incoming_.data() + 8, 4);
  if (received_ != header_bytes + length) return std::nullopt;
  StateFrame frame{static_cast<StateFrameKind>(incoming_[4]),
                   {incoming_.begin() + header_bytes, incoming_.begin() + static_cast<std::ptrdiff_t>(received_)}};
  received_ = 0;
  return frame;
}

}  // namespace motley
