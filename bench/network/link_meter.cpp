// What a network gives to plain sockets: round trip and loss by UDP, rate by TCP over one or several streams.
//
//   link_meter serve PORT                                 until it is killed
//   link_meter measure ADDRESS PORT [KEY=VALUE...]        one JSON line; streams (1), seconds (2, 0: no TCP),
//                                                         pings (20), datagrams (0), datagram_bytes (100),
//                                                         datagrams_per_s (2000), congestion (cubic, bbr)
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::environment, fmt::format("{}: {}", what, std::strerror(errno)));
}

sockaddr_in address_of(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)
    throw input_error("\"" + host + "\" is not an IPv4 address");
  return address;
}

int open_socket(int type, const std::string& host, int port, int (*attach)(int, const sockaddr*, socklen_t),
                const std::string& congestion = "") {
  const int file = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (type == SOCK_DGRAM) {  // what is lost is the network's doing, not the receiver's
    const int buffer_bytes = 4 << 20;
    setsockopt(file, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  }
  if (!congestion.empty() &&
      setsockopt(file, IPPROTO_TCP, TCP_CONGESTION, congestion.data(), static_cast<socklen_t>(congestion.size())) != 0)
    fail("congestion control " + congestion);
  const auto address = address_of(host, port);
  if (attach(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail(fmt::format("{}:{}", host, port));
  return file;
}

enum class Datagram : std::uint8_t { ping, counted, question };

// Answers pings; counts what is to be counted, and tells the number when asked.
void serve_datagrams(int file) {
  std::array<std::uint8_t, 65536> buffer{};
  std::uint64_t count = 0;
  sockaddr_in from{};
  for (;;) {
    socklen_t length = sizeof from;
    const auto size = recvfrom(file, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (size < 16) continue;
    const auto kind = static_cast<Datagram>(buffer[0]);
    if (kind == Datagram::counted) {
      ++count;
      continue;
    }
    if (kind == Datagram::question) std::memcpy(buffer.data() + 8, &count, sizeof count);
    sendto(file, buffer.data(), 16, 0, reinterpret_cast<sockaddr*>(&from), length);
  }
}

// Tells the sender, at the end of its stream, how many bytes came.
void serve_stream(int file) {
  std::vector<char> buffer(1 << 20);
  std::uint64_t bytes = 0;
  for (ssize_t size = 0; (size = read(file, buffer.data(), buffer.size())) > 0;)
    bytes += static_cast<std::uint64_t>(size);
  if (write(file, &bytes, sizeof bytes) != sizeof bytes) fmt::print(stderr, "a sender has gone\n");
  close(file);
}

[[noreturn]] void serve(int port) {
  const int listener = open_socket(SOCK_STREAM, "0.0.0.0", port, bind);
  if (listen(listener, 64) != 0) fail("listen");
  std::thread(serve_datagrams, open_socket(SOCK_DGRAM, "0.0.0.0", port, bind)).detach();
  for (;;)
    if (const int file = accept(listener, nullptr, nullptr); file >= 0) std::thread(serve_stream, file).detach();
}

// Sends `kind` and waits for its answer; the eight bytes that came with it. Asked again until it is answered.
std::uint64_t ask(int file, Datagram kind, std::uint64_t number, double timeout_s) {
  const double until_s = now_s() + timeout_s;
  while (now_s() < until_s) {
    std::array<std::uint8_t, 16> message{static_cast<std::uint8_t>(kind)};
    std::memcpy(message.data() + 8, &number, sizeof number);
    if (send(file, message.data(), message.size(), 0) < 0 && errno != ECONNREFUSED) fail("send");
    pollfd ready{file, POLLIN, 0};
    while (poll(&ready, 1, 500) > 0) {
      if (recv(file, message.data(), message.size(), 0) < 16) break;
      std::uint64_t answer = 0;
      std::memcpy(&answer, message.data() + 8, sizeof answer);
      if (message[0] == static_cast<std::uint8_t>(kind) && (kind == Datagram::question || answer == number))
        return answer;
    }
  }
  throw Error(ErrorCode::peer, "no answer");
}

struct StreamOutcome {
  double bytes = 0, end_s = 0;
  std::string error;
};

void send_stream(StreamOutcome& outcome, const std::string& host, int port, const std::string& congestion,
                 double until_s) {
  try {
    const int file = open_socket(SOCK_STREAM, host, port, connect, congestion);
    const std::vector<char> buffer(256 << 10);
    while (now_s() < until_s)
      if (write(file, buffer.data(), buffer.size()) < 0) fail("write");
    shutdown(file, SHUT_WR);
    std::uint64_t bytes = 0;
    if (read(file, &bytes, sizeof bytes) != sizeof bytes) fail("read");
    outcome.bytes = static_cast<double>(bytes);
    outcome.end_s = now_s();
    close(file);
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
}

// Bytes that arrived on all streams together, from the first write until the receiver has confirmed the last.
double stream_bytes_per_s(int streams, double seconds, const std::string& host, int port,
                          const std::string& congestion) {
  const double start_s = now_s();
  std::vector<StreamOutcome> outcomes(static_cast<std::size_t>(streams));
  std::vector<std::thread> threads;
  for (auto& outcome : outcomes)
    threads.emplace_back(send_stream, std::ref(outcome), host, port, congestion, start_s + seconds);
  for (auto& thread : threads) thread.join();
  double bytes = 0, end_s = start_s;
  for (const auto& outcome : outcomes) {
    if (!outcome.error.empty()) throw Error(ErrorCode::peer, outcome.error);
    bytes += outcome.bytes;
    end_s = std::max(end_s, outcome.end_s);
  }
  return bytes / (end_s - start_s);
}

double datagram_loss(int file, std::uint64_t count, std::size_t bytes, double per_s) {
  const std::uint64_t before = ask(file, Datagram::question, 0, 10);
  std::vector<std::uint8_t> message(std::max<std::size_t>(bytes, 16));
  message[0] = static_cast<std::uint8_t>(Datagram::counted);
  const double start_s = now_s();
  for (std::uint64_t i = 0; i < count; ++i) {
    const double early_s = start_s + static_cast<double>(i) / per_s - now_s();
    if (early_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(early_s));
    if (send(file, message.data(), message.size(), 0) < 0) fail("send");
  }
  // The answer travels behind the last datagram: the link keeps the order.
  const std::uint64_t arrived = ask(file, Datagram::question, 0, 10) - before;
  return 1 - static_cast<double>(arrived) / static_cast<double>(count);
}

int measure(const std::string& host, int port, std::map<std::string, std::string> options) {
  const auto number = [&](const std::string& key) { return std::stod(options.at(key)); };
  const int file = open_socket(SOCK_DGRAM, host, port, connect);
  ask(file, Datagram::ping, ~std::uint64_t{0}, 10);  // until the server is there
  std::vector<double> round_trips_s;
  for (int i = 0; i < number("pings"); ++i) {
    const double start_s = now_s();
    ask(file, Datagram::ping, static_cast<std::uint64_t>(i), 10);
    round_trips_s.push_back(now_s() - start_s);
  }
  std::sort(round_trips_s.begin(), round_trips_s.end());
  std::string line = "{";
  if (!round_trips_s.empty())
    line += fmt::format("\"round_trip_s\": {:.6f}, \"round_trip_least_s\": {:.6f}, ",
                        round_trips_s[round_trips_s.size() / 2], round_trips_s.front());
  if (const auto count = static_cast<std::uint64_t>(number("datagrams")); count > 0)
    line += fmt::format(
        "\"loss\": {:.6f}, ",
        datagram_loss(file, count, static_cast<std::size_t>(number("datagram_bytes")), number("datagrams_per_s")));
  if (number("seconds") > 0)
    line += fmt::format(
        "\"bytes_per_s\": {:.0f}, ",
        stream_bytes_per_s(static_cast<int>(number("streams")), number("seconds"), host, port, options["congestion"]));
  line += fmt::format("\"streams\": {}}}", options["streams"]);
  fmt::print("{}\n", line);
  return 0;
}

int main(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "serve") serve(std::stoi(words[1]));
  if (words.size() < 3 || words[0] != "measure")
    throw input_error("usage: link_meter serve PORT | measure ADDRESS PORT [KEY=VALUE...]");
  std::map<std::string, std::string> options{{"streams", "1"},          {"seconds", "2"},
                                             {"pings", "20"},           {"datagrams", "0"},
                                             {"datagram_bytes", "100"}, {"datagrams_per_s", "2000"},
                                             {"congestion", "cubic"}};
  for (std::size_t i = 3; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    const auto option = options.find(words[i].substr(0, equals));
    if (equals == std::string::npos || option == options.end())
      throw input_error("\"" + words[i] + "\" is not an option");
    option->second = words[i].substr(equals + 1);
  }
  return measure(words[1], std::stoi(words[2]), options);
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  try {
    return motley::main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const motley::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
