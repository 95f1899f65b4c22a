// Connected sockets, plain or under TLS 1.3, for bytes without waiting; and with waiting up to a deadline, for
// handshakes.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/comm/net/file_descriptor.hpp"

struct ssl_st;

namespace motley {

// Certificate, key and the authority that both ends' certificates must come from; all PEM.
struct TlsIdentity {
  std::string certificate;
  std::string key;
  std::string authority;
};

struct FreeTls {
  void operator()(ssl_st* tls) const;
};

// What a process proves itself with, and whom it believes. Copies share it, on all threads: when the identity is
// replaced, connections that stand stay as they are, and later ones show the new one.
class TlsContext {
 public:
  TlsContext();  // an identity is still to come: nothing can be secured before
  // Implicit, so that an identity can be given wherever one is needed. Throws an input error where the texts are not
  // what they should be.
  TlsContext(const TlsIdentity& identity);
  // Of a server that also talks to clients without a certificate: what they may ask for is its own affair.
  static TlsContext for_strangers_too(const TlsIdentity& identity);
  // Of a client without a certificate, that believes whom the authority with this fingerprint has certified.
  static TlsContext pinned_to(std::string fingerprint);

  void replace(const TlsIdentity& identity);
  // Throws a peer error where there is no identity yet.
  std::unique_ptr<ssl_st, FreeTls> new_connection() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

enum class TlsSide { client, server };

class ByteStream {
 public:
  enum class State { open, blocked, closed };  // blocked: nothing moved, and nothing can for now
  struct Moved {
    std::size_t bytes = 0;
    State state = State::open;
  };

  ByteStream() = default;
  // The socket must not block.
  explicit ByteStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  bool encrypted() const { return tls_ != nullptr; }
  // Why the stream is closed, in words.
  const std::string& cause() const { return cause_; }

  Moved read(std::span<std::byte> into);
  // First `head`, then `tail`; `bytes` counts both.
  Moved read(std::span<std::byte> head, std::span<std::byte> tail);
  Moved write(std::span<const std::byte> bytes);
  // read() may have bytes that no event will announce: TLS has taken them from the socket already. What it holds of a
  // record after a read that found nothing is followed by the rest, which is announced.
  bool pending() const;

  // Throw a peer error with the cause where the other side closes, or where `until` passes.
  void secure_as_client(const TlsContext& context, Instant until);
  void secure_as_server(const TlsContext& context, Instant until);
  // The same for an event loop: after start_tls(), advance_tls() is called whenever poll() reports wanted(), until it
  // returns true: the connection is secured.
  void start_tls(const TlsContext& context, TlsSide side);
  bool advance_tls();
  // The event (POLLIN or POLLOUT) for which TLS waits.
  short wanted() const { return wanted_; }
  void read_all(std::span<std::byte> into, Instant until);
  void write_all(std::span<const std::byte> bytes, Instant until);

  // The common name in the other side's certificate; empty without TLS.
  std::string peer_name() const;
  void close();
  FileDescriptor take_socket() { return std::move(socket_); }

 private:
  Moved tls_result(int result);
  void hear_alert();
  void secure(const TlsContext& context, TlsSide side, Instant until);
  void wait(short events, Instant until) const;

  FileDescriptor socket_;
  std::unique_ptr<ssl_st, FreeTls> tls_;
  short wanted_ = POLLIN;
  bool found_nothing_ = false;  // when read() last asked TLS
  std::string cause_;
};

}  // namespace motley
