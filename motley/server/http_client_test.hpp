// A bare client for tests: bytes in, bytes out, on a real loopback socket.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace motley {

class RawClient {
 public:
  explicit RawClient(int port, const char* from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    ::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  // False: the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  // Everything up to `mark`, the end of the connection, or five seconds without a byte, whichever comes first.
  std::string receive_until(std::string_view mark) {
    std::string text;
    while (mark.empty() || text.find(mark) == std::string::npos) {
      pollfd wait{socket_, POLLIN, 0};
      if (::poll(&wait, 1, 5000) <= 0) return text + "<silence>";
      char piece[4096];
      const ssize_t count = ::recv(socket_, piece, sizeof piece, 0);
      if (count <= 0) break;
      text.append(piece, static_cast<std::size_t>(count));
    }
    return text;
  }
  std::string receive_all() { return receive_until(""); }

 private:
  int socket_;
  bool connected_ = false;
};

inline std::string http_post(std::string_view path, std::string_view body,
                             std::string_view headers = "Connection: close\r\n") {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

inline std::string http_get_request(std::string_view path, std::string_view headers = "Connection: close\r\n") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) + "\r\n";
}

// Asks once on a connection of its own.
inline std::string ask(int port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.receive_all();
}

inline bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace motley
