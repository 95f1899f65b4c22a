// How state travels: connections of one process to another (plain TCP, or TLS 1.3 with mutual authentication), on which
// messages have a kind and a bounded length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/net/strangers.hpp"

namespace motley {

// At "10.0.0.7:4711", port 0: any free one. Nothing here waits.
class StateListener {
 public:
  // `key` is the group's secret, which a relay (listener.hpp) is shown.
  explicit StateListener(const std::string& address, std::optional<TlsContext> tls = {}, const std::string& key = {});

  int descriptor() const { return listening_->descriptor(); }
  bool pending() const { return !strangers_.empty() || !secured_.empty(); }  // poll() does not announce all that comes
  std::string address() const { return listening_->address(); }
  // A connection; not open where there is none.
  ByteStream accept();

 private:
  std::unique_ptr<Listener> listening_;
  std::optional<TlsContext> tls_;
  Strangers<TlsStranger> strangers_;
  std::deque<ByteStream> secured_;
};

// Waits some seconds at most. Throws a peer error.
ByteStream connect_for_state(const std::string& address, const std::optional<TlsContext>& tls = {},
                             const std::string& key = {});

// Lets this many bytes pass per second, and little more at once; 0: any number.
class StatePace {
 public:
  explicit StatePace(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  std::size_t allowed(double now_s);
  void spend(std::size_t bytes);
  // From now until a worthwhile number of bytes may pass.
  double wait_s(double now_s);

 private:
  double bytes_per_s_;
  double allowance_ = 0;
  double refilled_s_ = 0;
};

enum class StateMessageKind : std::uint8_t {
  hello = 1,     // to a source: the group, and the digest of the manifest that is wanted
  manifest = 2,  // from it: the manifest
  request = 3,   // to it: the digest of a chunk
  chunk = 4,     // from it: the digest, then the bytes
  refusal = 5    // from it: why not, in words
};

struct StateMessage {
  StateMessageKind kind = StateMessageKind::refusal;
  std::span<const std::byte> payload;
};

// Messages to and from one peer; nothing waits.
class StateConnection {
 public:
  // Payloads that are received have `largest_bytes` at most.
  StateConnection(ByteStream stream, std::size_t largest_bytes);

  int descriptor() const { return stream_.descriptor(); }
  bool pending() const { return stream_.pending(); }
  // `head` is copied; `body` is sent from where it lies, which `owner` keeps.
  void queue(StateMessageKind kind, std::string_view head, std::span<const std::byte> body = {},
             std::shared_ptr<const void> owner = {});
  bool writing() const { return !stream_.flushed(); }
  std::size_t queued_messages() const { return stream_.queued_messages(); }
  // How many bytes the network took.
  std::size_t write_some(StatePace& pace, double now_s);
  // A message that has arrived completely, valid until the next call. Throws a peer error where the connection ended,
  // or what came is not a message of ours, or too long.
  std::optional<StateMessage> receive(StatePace& pace, double now_s);
  // Bytes that have arrived so far.
  std::uint64_t received_bytes() const { return stream_.received_bytes(); }

 private:
  MessageStream stream_;
};

}  // namespace motley
