// Joins members that cannot dial each other: both dial the relay, and it passes bytes on between them. The members'
// own handshake, and their TLS, go through it: it sees who calls whom, and nothing of what they say.
//
// A dialler begins with a RelayOpening. On a control connection follow TLS (where the relay has an identity) and the
// handshake of handshake.hpp, whose `word` is a mailbox: `relay_listen` keeps the connection, on which the relay then
// writes a ticket for every call, and zeros from time to time; `relay_call` is answered with a ticket. Caller and
// listener then open a data connection each with that ticket, good once and for `ticket_s`, and are joined.
#pragma once

#include <fmt/format.h>
#include <array>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/strangers.hpp"

namespace motley {

using RelayTicket = std::array<std::uint8_t, 16>;  // random; zeros are none

struct RelayOpening {
  enum class Kind : std::uint8_t { control, secured_control, data };
  Kind kind = Kind::control;
  RelayTicket ticket{};  // of a data connection
};
constexpr std::size_t relay_opening_bytes = 24;
std::array<std::byte, relay_opening_bytes> encode_opening(const RelayOpening& opening);
// Empty where this is not an opening of this version.
std::optional<RelayOpening> decode_opening(std::span<const std::byte> bytes);

constexpr std::size_t longest_mailbox = 64;  // bytes of its name
constexpr double relay_ticket_s = 10;
constexpr double relay_beat_s = 3;  // the relay says on control connections that it lives

struct RelayOptions {
  std::string listen = "127.0.0.1:0";
  std::string key = {};                      // the group's secret: who has another is turned away
  std::optional<TlsIdentity> identity = {};  // TLS of control connections; needed off loopback
  // Why this member may not use the relay; empty: it may. Asked by its certificate's name, on each control connection
  // and then every relay_beat_s. From its thread.
  std::function<std::string(const std::string& member)> objection = {};
  StrangerLimits strangers = {};
  std::size_t most_mailboxes = 4096;
  std::size_t most_joined = 1024;  // pairs of connections at once; one more ends the pair that was idle for longest
  double idle_s = 3600;  // until a pair on which nothing passes is ended; members connect again when they must
  // One line each for what was joined, refused, lost, and what is more than a few of a kind counted (limited_log.hpp).
  // Empty: nowhere.
  std::function<void(const std::string& line)> log = {};
};

class Relay {
 public:
  // Throws an environment error where the address cannot be listened on, an input error for one that other machines
  // can reach without an identity.
  explicit Relay(RelayOptions options);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const std::string& address() const;
  void run(std::stop_token stop);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A relay in the process of a coordinator or a driver. Its end is not the other's: that is logged.
class RelayThread {
 public:
  explicit RelayThread(const RelayOptions& options)
      : relay_(options), thread_([this, log = options.log](const std::stop_token& stop) {
          sigset_t all;  // signals are for the thread that waits for them
          sigfillset(&all);
          pthread_sigmask(SIG_BLOCK, &all, nullptr);
          try {
            relay_.run(stop);
          } catch (const std::exception& error) {
            if (log) log(fmt::format("trouble what=\"the relay has ended: {}\"", error.what()));
          }
        }) {}
  const std::string& address() const { return relay_.address(); }

 private:
  Relay relay_;
  std::jthread thread_;
};

}  // namespace motley
