#include "motley/comm/net/listener.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <stop_token>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/random_bytes.hpp"
#include "motley/comm/net/relay.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

constexpr std::string_view scheme = "relay:";
constexpr auto dial_time = std::chrono::seconds(5);
constexpr auto silence_time = std::chrono::milliseconds(static_cast<int>(3 * relay_beat_s * 1000));
constexpr std::size_t most_calls = 64;  // that are being answered at once, and that wait for accept()

struct RelayedAddress {
  std::string relay, mailbox;
};

RelayedAddress parse_relayed(const std::string& address) {
  const std::string rest = address.substr(scheme.size());
  const std::size_t slash = rest.find('/');
  RelayedAddress parsed{rest.substr(0, slash), slash == std::string::npos ? std::string() : rest.substr(slash + 1)};
  parse_host_port(parsed.relay);
  if (parsed.mailbox.size() > longest_mailbox || (slash != std::string::npos && parsed.mailbox.empty()))
    throw input_error(
        fmt::format("\"{}\" must be a mailbox at a relay", address),
        fmt::format("write it as relay:host:port, or relay:host:port/name with 1 to {} bytes", longest_mailbox));
  return parsed;
}

std::string random_mailbox() {
  std::array<std::uint8_t, 8> bytes{};
  fill_random(std::as_writable_bytes(std::span(bytes)));
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

constexpr const char* relay_hint =
    "check that `motley group serve --relay` runs there, and that no firewall blocks the port";

FileDescriptor dial_relay(const std::string& relay, const RelayOpening& opening, Instant until) {
  ConnectFailure failure;
  FileDescriptor socket = connect_tcp(relay, until, failure);
  if (!socket) throw Error(ErrorCode::peer, fmt::format("the relay does not answer: {}", failure.cause), relay_hint);
  ByteStream stream(std::move(socket));
  stream.write_all(encode_opening(opening), until);
  return stream.take_socket();
}

// A control connection on which this process has been welcomed.
ByteStream handshake_with_relay(const RelayedAddress& place, LinkPurpose purpose, const RelayAccess& access,
                                Instant until) {
  ConnectFailure failure;
  FileDescriptor socket = connect_tcp(place.relay, until, failure);
  if (!socket) throw Error(ErrorCode::peer, fmt::format("the relay does not answer: {}", failure.cause), relay_hint);
  const bool secured =
      access.encryption == Encryption::always ||
      (access.encryption == Encryption::off_loopback && (access.identity.has_value() || !peer_is_local(socket.get())));
  ByteStream stream(std::move(socket));
  stream.write_all(
      encode_opening({secured ? RelayOpening::Kind::secured_control : RelayOpening::Kind::control, RelayTicket{}}),
      until);
  if (secured) {
    if (!access.identity)
      throw Error(ErrorCode::peer, "the relay needs TLS, which needs a certificate for this process",
                  "give it a folder that `motley group issue` made");
    stream.secure_as_client(*access.identity, until);
    expect_coordinator(stream, place.relay);
  }
  LinkHello hello;
  hello.purpose = purpose;
  hello.word = place.mailbox;
  const LinkWelcome welcome = client_handshake(stream, hello, access.key, until);
  if (welcome.answer != LinkAnswer::welcome)
    throw Error(ErrorCode::peer, fmt::format("the relay at {} refuses: {}", place.relay, welcome.cause));
  return stream;
}

class TcpListener final : public Listener {
 public:
  explicit TcpListener(const std::string& address) : listening_(listen_tcp(address)) {}
  const std::string& address() const override { return listening_.address; }
  int descriptor() const override { return listening_.socket.get(); }
  FileDescriptor accept() override { return accept_connection(descriptor()); }
  std::string trouble() const override { return {}; }

 private:
  ListeningSocket listening_;
};

// Keeps a control connection at the relay; answers each ticket that comes on it with a data connection.
class RelayListener final : public Listener {
 public:
  RelayListener(const std::string& address, RelayAccess access)
      : place_(parse_relayed(address)), access_(std::move(access)) {
    if (place_.mailbox.empty()) place_.mailbox = random_mailbox();
    address_ = fmt::format("{}{}/{}", scheme, place_.relay, place_.mailbox);
    thread_ = std::jthread([this](const std::stop_token& stop) { listen(stop); });
  }
  ~RelayListener() override {
    thread_.request_stop();
    stopping_.notify();
    thread_.join();
  }

  const std::string& address() const override { return address_; }
  int descriptor() const override { return arrived_.descriptor(); }

  FileDescriptor accept() override {
    const std::lock_guard lock(mutex_);
    if (calls_.empty()) return {};
    FileDescriptor socket = std::move(calls_.front());
    calls_.pop_front();
    if (calls_.empty()) arrived_.clear();
    return socket;
  }

  std::string trouble() const override {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }

 private:
  void listen(const std::stop_token& stop) {
    auto pause = std::chrono::milliseconds(20);
    while (!stop.stop_requested()) {
      try {
        ByteStream control = handshake_with_relay(place_, LinkPurpose::relay_listen, access_, Clock::now() + dial_time);
        tell("");
        pause = std::chrono::milliseconds(20);
        take_calls(control, stop);
      } catch (const std::exception& error) {
        tell(error.what());
      }
      if (stop.stop_requested()) return;
      wait_for(stopping_.descriptor(), POLLIN, Clock::now() + pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(1000));
    }
  }

  void tell(const std::string& trouble) {
    const std::lock_guard lock(mutex_);
    trouble_ = trouble;
  }

  // Until asked to stop; throws a peer error where the relay is lost or silent.
  void take_calls(ByteStream& control, const std::stop_token& stop) {
    std::array<std::byte, 16 * sizeof(RelayTicket)> bytes{};
    std::size_t have = 0;
    auto heard_at = Clock::now();
    while (!stop.stop_requested()) {
      std::array<pollfd, 2> waiting{pollfd{control.descriptor(), POLLIN, 0}, pollfd{stopping_.descriptor(), POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(), control.pending() ? 0 : 1000);
      const ByteStream::Moved moved = control.read(std::span(bytes).subspan(have));
      if (moved.state == ByteStream::State::closed)
        throw Error(ErrorCode::peer, fmt::format("the connection to the relay broke: {}", control.cause()));
      if (moved.bytes > 0) heard_at = Clock::now();
      if (Clock::now() - heard_at > silence_time) throw Error(ErrorCode::peer, "the relay is silent");
      have += moved.bytes;
      std::size_t place = 0;
      for (; have - place >= sizeof(RelayTicket); place += sizeof(RelayTicket)) {
        RelayTicket ticket;
        std::memcpy(ticket.data(), bytes.data() + place, sizeof ticket);
        if (ticket != RelayTicket{}) answer(ticket);
      }
      std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(place), bytes.begin() + static_cast<std::ptrdiff_t>(have),
                bytes.begin());
      have -= place;
    }
  }

  // On a thread, as dialling takes a round trip. Who called and is not answered calls again.
  void answer(const RelayTicket& ticket) {
    std::erase_if(answering_, [](const Answering& each) { return each.done->load(); });
    if (answering_.size() >= most_calls) return;
    auto done = std::make_shared<std::atomic<bool>>(false);
    answering_.push_back({done, std::jthread([this, ticket, done] {
                            try {
                              FileDescriptor socket = dial_relay(place_.relay, {RelayOpening::Kind::data, ticket},
                                                                 Clock::now() + dial_time);
                              const std::lock_guard lock(mutex_);
                              if (calls_.size() < most_calls) calls_.push_back(std::move(socket));
                              arrived_.notify();
                            } catch (const std::exception& error) {
                              tell(error.what());
                            }
                            done->store(true);
                          })});
  }

  struct Answering {
    std::shared_ptr<std::atomic<bool>> done;
    std::jthread thread;
  };

  RelayedAddress place_;
  RelayAccess access_;
  std::string address_;
  Wakeup stopping_, arrived_;  // the second is set while there are calls
  mutable std::mutex mutex_;
  std::deque<FileDescriptor> calls_;
  std::string trouble_ = "the relay has not answered yet";
  std::list<Answering> answering_;  // of the thread alone
  std::jthread thread_;
};

}  // namespace

bool is_relayed(const std::string& address) { return address.starts_with(scheme); }

std::string sibling_of(const std::string& address) {
  if (is_relayed(address)) return std::string(scheme) + parse_relayed(address).relay;
  return address.substr(0, address.rfind(':')) + ":0";
}

std::string host_of(const std::string& address) {
  return is_relayed(address) ? address : parse_host_port(address).host;
}

std::unique_ptr<Listener> listen_at(const std::string& address, const RelayAccess& access) {
  if (is_relayed(address)) return std::make_unique<RelayListener>(address, access);
  return std::make_unique<TcpListener>(address);
}

FileDescriptor connect_to(const std::string& address, const RelayAccess& access, Instant until,
                          ConnectFailure& failure) {
  if (!is_relayed(address)) return connect_tcp(address, until, failure);
  failure = {};
  try {
    const RelayedAddress place = parse_relayed(address);
    ByteStream control = handshake_with_relay(place, LinkPurpose::relay_call, access, until);
    RelayTicket ticket;
    control.read_all(std::as_writable_bytes(std::span(ticket)), until);
    return dial_relay(place.relay, {RelayOpening::Kind::data, ticket}, until);
  } catch (const Error& error) {
    failure.cause = fmt::format("{}: {}", address, error.what());
    return {};
  }
}

}  // namespace motley
