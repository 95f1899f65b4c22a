// How two members of an epoch make sure of each other before a connection carries frames.
//
// The acceptor sends a challenge; the dialler answers with who it is and what it wants, signed with the group's key;
// the acceptor accepts, signed in the same way, or says why not. Under TLS the certificate must moreover name the
// member.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/epoch.hpp"

namespace motley {

enum class LinkPurpose : std::uint8_t {
  stream,
  shared_memory,
  probe,   // only to see whether the other side is there
  revoke,  // to say that the epoch is given up; `word` says why
  // To a relay (relay.hpp), where `word` is a mailbox.
  relay_listen,
  relay_call,
  control,  // of a worker to its driver; `word` is where the worker takes other connections
  last = control
};

struct LinkHello {
  LinkPurpose purpose = LinkPurpose::stream;
  BoundedText<max_name_bytes> group;
  std::uint64_t epoch = 0;
  std::uint16_t from = 0, to = 0;  // ranks
  BoundedText<max_name_bytes> from_id;
  std::uint64_t incarnation = 0;
  std::uint16_t stream = 0;  // which of the streams between the two
  BoundedText<1000> word = {};
  bool operator==(const LinkHello&) const = default;
};

enum class LinkAnswer : std::uint8_t {
  welcome,
  not_yet,  // this epoch has not begun here: try again
  refused,
  last = refused
};
struct LinkWelcome {
  LinkAnswer answer = LinkAnswer::welcome;
  BoundedText<2 * max_name_bytes> cause = {};  // where refused
};

// The dialler's half. `key` is the group's secret; both must have the same, which may be empty. Throws a peer error
// that says what is wrong with the other side, or what it found wrong with this one.
LinkWelcome client_handshake(ByteStream& stream, const LinkHello& hello, const std::string& key, Instant until);

// The acceptor's half, in two steps; the first for an event loop.
struct HeardHello {
  LinkHello hello;
  std::string nonces;  // what the answer's signature covers
};
class Hearing {
 public:
  // Sends the challenge, which is shorter than any socket's buffer: it never waits.
  void begin(ByteStream& stream);
  // The hello, once all of it has arrived; empty: call this again when there is more to read. Throws a peer error where
  // the other side is a stranger: another protocol, version or key; it is told so.
  std::optional<HeardHello> advance(ByteStream& stream, const std::string& key);

 private:
  std::string challenge_, arrived_;
};
void answer(ByteStream& stream, const HeardHello& heard, const LinkWelcome& welcome, const std::string& key,
            Instant until);

// The name in a coordinator's certificate; no member gets it by showing the token.
constexpr std::string_view coordinator_name = "coordinator";
// Throws a peer error, with a hint, unless the certificate of the process at `address` names the coordinator.
void expect_coordinator(const ByteStream& stream, const std::string& address);

// Whether a certificate for `certified` proves to be `id`: its own name, or, as "box/0" of "box", a device of that
// machine.
bool vouches_for(std::string_view certified, std::string_view id);

// What is wrong with a handshake for `rank` of `epoch`, under TLS from `certified`; empty where nothing is.
std::string objection(const LinkHello& hello, const Epoch& epoch, int rank, const std::string& certified);

}  // namespace motley
