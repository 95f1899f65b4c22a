// Clients that mean a server ill: silent, slow, malformed, many, flooding. The server runs in the test's own process,
// so that what it costs can be measured.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {

struct ProcessUse {
  std::size_t threads = 0, descriptors = 0, resident_bytes = 0;
};

inline ProcessUse process_use() {
  const auto count = [](const char* folder) {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
  };
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return {count("/proc/self/task"), count("/proc/self/fd"), pages * 4096};
}

class HostileClients {
 public:
  explicit HostileClients(std::string address) : address_(std::move(address)) {}

  // Says these bytes, and stays; or, with After::leave, closes.
  enum class After { stay, leave };
  void say(const std::string& bytes, After after) {
    ConnectFailure failure;
    FileDescriptor socket = connect_tcp(address_, soon(), failure);
    ASSERT_TRUE(socket) << failure.cause;
    ByteStream stream(std::move(socket));
    try {
      stream.write_all(std::as_bytes(std::span(bytes)), soon());
    } catch (const Error&) {
      // It has been hung up on already.
    }
    if (after == After::stay) held_.push_back(std::move(stream));
  }
  std::size_t held() const { return held_.size(); }

 private:
  const std::string address_;
  std::vector<ByteStream> held_;
};

// What one says first under TLS.
inline std::string tls_opening() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  ByteStream client{FileDescriptor(ends[0])};
  const FileDescriptor other(ends[1]);
  client.start_tls(TlsContext::pinned_to("stranger"), TlsSide::client);
  EXPECT_FALSE(client.advance_tls());
  std::string bytes(16 << 10, '\0');
  bytes.resize(static_cast<std::size_t>(::read(other.get(), bytes.data(), bytes.size())));
  return bytes;
}

// What one answers the challenge of handshake.hpp with, without the key.
inline std::string link_opening() {
  std::string bytes("MTLL\1\0\200\0", 8);
  return bytes + std::string(128, '\0');
}

// `openings` are what honest clients say first, `honest` is one from its connection to its end: it throws where the
// server does not do its part. Fails unless it is served throughout, at bounded cost.
inline void expect_to_endure_hostile_clients(const std::string& address, const std::vector<std::string>& openings,
                                             const std::function<void()>& honest) {
  const auto honest_in_the_end = [&](const char* against) {
    for (const auto until = soon();;) try {
        return honest();
      } catch (const Error& error) {  // an honest client tries again
        ASSERT_LT(Clock::now(), until) << "against " << against << ": " << error.what();
      }
  };
  using After = HostileClients::After;
  honest_in_the_end("no others");
  const ProcessUse before = process_use();
  HostileClients clients(address);
  for (int i = 0; i < 300; ++i) clients.say("", After::stay);
  honest_in_the_end("silent ones");
  for (const std::string& opening : openings)
    for (std::size_t length = 1; length <= opening.size(); length += 1 + opening.size() / 20)
      clients.say(opening.substr(0, length), After::stay);
  honest_in_the_end("slow ones");
  for (const std::string& opening : openings)
    for (std::size_t at = 0; at < opening.size(); at += 1 + opening.size() / 20) {
      std::string broken = opening;
      broken[at] = static_cast<char>(~broken[at]);
      clients.say(broken, After::leave);
      clients.say(broken + std::string(100'000, '\xff'), After::leave);
    }
  honest_in_the_end("malformed ones");
  {
    std::jthread flood([&](const std::stop_token& stop) {
      HostileClients many(address);
      for (std::size_t i = 0; !stop.stop_requested(); ++i)
        many.say(i % 2 == 0 ? "" : openings[i / 2 % openings.size()], After::leave);
    });
    for (int i = 0; i < 10; ++i) honest_in_the_end("a flood");
  }
  for (const std::string& opening : openings) clients.say(opening + std::string(8 << 20, '\0'), After::leave);
  honest_in_the_end("endless ones");
  const ProcessUse now = process_use();
  EXPECT_LE(now.threads, before.threads + 1);
  EXPECT_LE(now.descriptors, before.descriptors + clients.held() + 128 + 16);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep what is freed, or copy it
  EXPECT_LE(now.resident_bytes, before.resident_bytes + (std::size_t{64} << 20));
#endif
}

}  // namespace motley
