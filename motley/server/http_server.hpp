// HTTP/1.1 on one thread: limits, timeouts, keep-alive, server-sent events, and noticing that a client has left.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "motley/server/http.hpp"

namespace motley {

struct ServerOptions {
  std::string host = "127.0.0.1";  // a numeric address, or "localhost"
  int port = 8000;                 // 0: any free one
  bool insecure = false;           // allows an address that other machines reach: there is no TLS
  std::size_t max_header_bytes = 16 << 10;
  std::size_t max_body_bytes = 8 << 20;
  // Of all connections, and of those of one address that have asked nothing yet: beyond that the oldest of these is
  // closed. Without any, one that is idle between requests makes room, or one that does not read its answer; where all
  // are being answered, the new one gets 503. A quarter of the process's descriptors is left alone.
  std::size_t max_connections = 1024;
  std::size_t max_new_per_address = 512;
  std::size_t max_bodies_bytes = 128 << 20;  // of all together; where there are more, the largest is dropped
  std::size_t max_unread_bytes =
      1 << 20;  // of an answer, without the system's socket buffer; a client further behind is dropped
  std::vector<std::string> origins = {};  // of pages that may use the API (web_access.hpp), besides the server's own
  std::chrono::milliseconds header_timeout{30000};  // between requests, and of a header
  std::chrono::milliseconds body_timeout{60000};
  std::chrono::milliseconds write_timeout{30000};  // without a byte taken
};

class Server {
 public:
  // Binds and serves. Throws an input error (address), an environment error (port in use, address not of this machine).
  Server(HttpHandler handler, ServerOptions options);
  ~Server();

  int port() const;
  // Takes no more connections, lets answers under way end for `grace`, then closes all.
  void stop(std::chrono::milliseconds grace);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // answers that outlive the server hold it, too
};

}  // namespace motley
