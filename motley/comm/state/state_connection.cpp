#include "motley/comm/state/state_connection.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/state/state_manifest.hpp"

namespace motley {
namespace {

constexpr std::size_t kind_bytes = 1;
constexpr double slice_bytes = 64 << 10;
constexpr double handshake_s = 5;

RelayAccess access_of(const std::optional<TlsContext>& tls, const std::string& key) {
  return {key, tls, tls ? Encryption::always : Encryption::off_loopback};
}

}  // namespace

StateListener::StateListener(const std::string& address, std::optional<TlsContext> tls, const std::string& key)
    : listening_(listen_at(address, access_of(tls, key))), tls_(std::move(tls)), strangers_(StrangerLimits{}) {}

ByteStream StateListener::accept() {
  if (!tls_) return ByteStream(listening_->accept());
  strangers_.take_in([this] { return listening_->accept(); },
                     [this](FileDescriptor socket) { return TlsStranger(std::move(socket), *tls_); });
  for (TlsStranger& stranger : strangers_.advance()) secured_.push_back(stranger.take_stream());
  if (secured_.empty()) return {};
  ByteStream next = std::move(secured_.front());
  secured_.pop_front();
  return next;
}

ByteStream connect_for_state(const std::string& address, const std::optional<TlsContext>& tls, const std::string& key) {
  ConnectFailure failure;
  FileDescriptor socket = connect_to(address, access_of(tls, key), deadline_in(handshake_s), failure);
  if (!socket) throw Error(ErrorCode::peer, failure.cause);
  ByteStream stream(std::move(socket));
  if (tls) stream.secure_as_client(*tls, deadline_in(handshake_s));
  return stream;
}

std::size_t StatePace::allowed(double now_s) {
  if (bytes_per_s_ <= 0) return MessageStream::unlimited;
  const double most = std::max(slice_bytes, 0.01 * bytes_per_s_);
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

StateConnection::StateConnection(ByteStream stream, std::size_t largest_bytes)
    : stream_(std::move(stream), kind_bytes + max_manifest_bytes) {
  stream_.accept_up_to(kind_bytes + largest_bytes);
}

void StateConnection::queue(StateMessageKind kind, std::string_view head, std::span<const std::byte> body,
                            std::shared_ptr<const void> owner) {
  std::string text(kind_bytes, static_cast<char>(kind));
  text += head;
  stream_.queue(text, body, std::move(owner));
}

std::size_t StateConnection::write_some(StatePace& pace, double now_s) {
  const std::size_t bytes = stream_.flush(pace.allowed(now_s));
  pace.spend(bytes);
  return bytes;
}

std::optional<StateMessage> StateConnection::receive(StatePace& pace, double now_s) {
  const std::uint64_t before = received_bytes();
  const auto message = stream_.receive(pace.allowed(now_s));
  pace.spend(static_cast<std::size_t>(received_bytes() - before));
  if (!message) {
    if (stream_.ended()) throw Error(ErrorCode::peer, stream_.cause());
    return std::nullopt;
  }
  const auto bytes = std::as_bytes(std::span(*message));
  const int kind = bytes.empty() ? 0 : std::to_integer<int>(bytes.front());
  if (kind < 1 || kind > 5) throw Error(ErrorCode::peer, fmt::format("sent a message of the unknown kind {}", kind));
  return StateMessage{static_cast<StateMessageKind>(kind), bytes.subspan(kind_bytes)};
}

}  // namespace motley
