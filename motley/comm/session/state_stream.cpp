#include "motley/comm/session/state_stream.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <list>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/net/listener.hpp"

namespace motley {
namespace {

constexpr std::uint32_t frame_magic = 0x3153746D;  // "mtS1"
constexpr std::size_t header_bytes = 12;           // magic, kind, three zeros, length
constexpr std::size_t slice_bytes = std::size_t{64} << 10;

constexpr auto handshake_time = std::chrono::seconds(5);
constexpr std::size_t most_handshakes = 16;  // at once

RelayAccess access_of(const std::optional<TlsContext>& tls, const std::string& key) {
  return {key, tls, tls ? Encryption::always : Encryption::off_loopback};
}

Instant in(std::chrono::seconds time) { return Clock::now() + time; }

class SocketStateStream final : public StateStream {
 public:
  explicit SocketStateStream(ByteStream stream) : stream_(std::move(stream)) {}
  int descriptor() const override { return stream_.descriptor(); }
  bool pending() const override { return stream_.pending(); }
  std::size_t read(std::span<std::byte> into) override { return moved(stream_.read(into)); }
  std::size_t write(std::span<const std::byte> from) override { return moved(stream_.write(from)); }

 private:
  std::size_t moved(const ByteStream::Moved& result) const {
    if (result.bytes == 0 && result.state == ByteStream::State::closed) throw Error(ErrorCode::peer, stream_.cause());
    return result.bytes;
  }
  ByteStream stream_;
};

// Handshakes of TLS run beside, so that a stranger who says nothing holds nobody up.
class SocketStateListener final : public StateListener {
 public:
  SocketStateListener(const std::string& address, std::optional<TlsContext> tls, const std::string& key)
      : listening_(listen_at(address, access_of(tls, key))), tls_(std::move(tls)) {}

  int descriptor() const override { return listening_->descriptor(); }
  bool pending() const override { return !handshakes_.empty(); }
  std::string address() const override { return listening_->address(); }

  std::unique_ptr<StateStream> accept() override {
    while (handshakes_.size() < most_handshakes) {
      FileDescriptor socket = listening_->accept();
      if (!socket) break;
      if (!tls_) return std::make_unique<SocketStateStream>(ByteStream(std::move(socket)));
      handshakes_.push_back(
          std::async(std::launch::async, [stream = ByteStream(std::move(socket)), tls = *tls_]() mutable {
            stream.secure_as_server(tls, in(handshake_time));
            return std::move(stream);
          }));
    }
    for (auto each = handshakes_.begin(); each != handshakes_.end();) {
      if (each->wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        ++each;
        continue;
      }
      auto done = std::move(*each);
      each = handshakes_.erase(each);
      try {
        return std::make_unique<SocketStateStream>(done.get());
      } catch (const Error&) {
        continue;  // a stranger
      }
    }
    return nullptr;
  }

 private:
  std::unique_ptr<Listener> listening_;
  std::optional<TlsContext> tls_;
  std::list<std::future<ByteStream>> handshakes_;
};

}  // namespace

std::unique_ptr<StateListener> listen_for_state(const std::string& address, std::optional<TlsContext> tls,
                                                const std::string& key) {
  return std::make_unique<SocketStateListener>(address, std::move(tls), key);
}

std::unique_ptr<StateStream> connect_for_state(const std::string& address, const std::optional<TlsContext>& tls,
                                               const std::string& key) {
  ConnectFailure failure;
  FileDescriptor socket = connect_to(address, access_of(tls, key), in(handshake_time), failure);
  if (!socket) throw Error(ErrorCode::peer, failure.cause);
  ByteStream stream(std::move(socket));
  if (tls) stream.secure_as_client(*tls, in(handshake_time));
  return std::make_unique<SocketStateStream>(std::move(stream));
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
