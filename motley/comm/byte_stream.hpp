// Connected sockets, plain or under TLS 1.3, for bytes without waiting; and with waiting up to a deadline, for
// handshakes.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "motley/comm/file_descriptor.hpp"

struct ssl_st;
struct ssl_ctx_st;

namespace motley {

// Certificate, key and the authority that both ends' certificates must come from; all PEM.
struct TlsIdentity {
  std::string certificate;
  std::string key;
  std::string authority;
};

// Shared by all streams of one identity; throws an input error where the texts are not what they should be.
class TlsContext {
 public:
  explicit TlsContext(const TlsIdentity& identity);
  ssl_ctx_st* get() const { return context_.get(); }

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

class ByteStream {
 public:
  enum class State { open, blocked, closed };  // blocked: nothing moved, and nothing can for now
  struct Moved {
    std::size_t bytes = 0;
    State state = State::open;
  };
  using Time = std::chrono::steady_clock::time_point;

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
  // True where bytes were read from the socket that read() has not yet given out, so that no event will announce them.
  bool pending() const;

  // Throw a peer error with the cause where the other side closes, or where `until` passes.
  void secure_as_client(const TlsContext& context, Time until);
  void secure_as_server(const TlsContext& context, Time until);
  void read_all(std::span<std::byte> into, Time until);
  void write_all(std::span<const std::byte> bytes, Time until);

  // The common name in the other side's certificate; empty without TLS.
  std::string peer_name() const;
  void close();
  FileDescriptor take_socket() { return std::move(socket_); }

 private:
  Moved tls_result(int result);
  void secure(const TlsContext& context, Time until, bool server);
  void wait_for(short events, Time until) const;

  struct FreeTls {
    void operator()(ssl_st* tls) const;
  };
  FileDescriptor socket_;
  std::unique_ptr<ssl_st, FreeTls> tls_;
  short wanted_ = 0;  // what TLS waits for: POLLIN or POLLOUT
  std::string cause_;
};

// Every TCP connection of ours: no delay, dead ones noticed within about ten seconds even where nothing is sent.
void set_connection_options(int socket);

}  // namespace motley
