// The seam between the HTTP transport (http_server) and what answers (service): plain values and one answer channel.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace motley {

struct HttpRequest {
  std::string method;         // "GET"
  std::string path;           // without the query
  std::string authorization;  // the header's value; empty: none
  std::string content_type;   // the header's value
  std::string body;
  std::shared_ptr<void> share = {};  // of the memory for bodies, taken as long as the request lives
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

// The answer to one request: either reply(), or start_stream(), send()... and end(). Safe from any thread; none blocks.
// After the client has left, everything is ignored.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void reply(HttpResponse response) = 0;
  virtual void start_stream() = 0;  // 200, server-sent events
  virtual void send(std::string events) = 0;
  virtual void end() = 0;
  virtual bool gone() const = 0;  // the client has left
  // Called once, on a thread of the server's, when the client leaves or does not read what it is sent; at once if it
  // has.
  virtual void on_gone(std::function<void()> callback) = 0;
};

// Called on the transport's thread for every well-formed request; must not block or throw.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;

}  // namespace motley
