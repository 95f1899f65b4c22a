// Connections that have not shown a credential yet, in a server's poll loop. There are few of them, few from one
// address, and none for long: a newcomer takes the place of the oldest one of the address that has the most, so that
// silence keeps no other out. Their handshakes go on without waiting and without threads.
#pragma once

#include <poll.h>

#include <cerrno>
#include <cstddef>
#include <exception>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {

struct StrangerLimits {
  std::size_t most = 256;
  std::size_t most_of_address = 128;  // machines behind one router, and all processes of this machine, share one
  double handshake_s = 5;             // until a credential is shown
};

// The limits for this many of one address; there is room for two such addresses.
StrangerLimits strangers_with(std::size_t most_of_address);

// Which of the connections from these addresses, oldest first, goes for one more from `newcomer`; none where there is
// room.
std::optional<std::size_t> stranger_to_evict(const std::vector<std::string>& addresses, const std::string& newcomer,
                                             const StrangerLimits& limits);

// `Stranger` has descriptor(), events() for poll(), and advance(): true once it has shown what it has to. What that
// throws ends the connection.
template <class Stranger>
class Strangers {
 public:
  using Refused = std::function<void(const std::string& peer, const std::string& cause)>;

  explicit Strangers(
      StrangerLimits limits, Refused refused = [](const std::string&, const std::string&) {})
      : limits_(limits), refused_(std::move(refused)) {}

  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }

  // What wakes the loop.
  void watch(std::vector<pollfd>& descriptors) const {
    for (const Waiting& each : waiting_) descriptors.push_back({each.stranger.descriptor(), each.stranger.events(), 0});
  }

  // Takes in who calls, a few in a turn. `accept` returns a socket, or an empty one; `make` makes a stranger of it.
  template <class Accept, class Make>
  void take_in(const Accept& accept, const Make& make) {
    for (int i = 0; i < most_accepted; ++i) {
      errno = 0;
      FileDescriptor socket = accept();
      if (!socket) {
        // Without a descriptor to spare, a newcomer can only follow one that goes.
        if ((errno == EMFILE || errno == ENFILE) && !waiting_.empty()) evict(waiting_.begin());
        return;
      }
      std::string peer = peer_address(socket.get()), address = peer_origin(socket.get());
      make_room(address);
      guarded(peer, [&] {
        waiting_.push_back(
            {make(std::move(socket)), std::move(address), peer, Clock::now(), deadline_in(limits_.handshake_s)});
      });
    }
  }

  // Those that are through. A few go on in a turn, the others in the next: one that floods holds the loop up for
  // no longer.
  std::vector<Stranger> advance() {
    std::vector<pollfd> ready;
    watch(ready);
    ::poll(ready.data(), ready.size(), 0);
    std::vector<Stranger> through;
    std::list<Waiting> moved;  // what is left there at the end is done with
    auto each = waiting_.begin();
    for (const pollfd& socket : ready) {
      const auto now = each++;
      if (Clock::now() > now->until)
        refuse(now, "no handshake in time");
      else if (socket.revents != 0 && moved.size() < most_advanced)
        moved.splice(moved.end(), waiting_, now);
    }
    for (auto next = moved.begin(); next != moved.end();) {
      const auto one = next++;
      guarded(one->peer, [&] {
        if (one->stranger.advance())
          through.push_back(std::move(one->stranger));
        else
          waiting_.splice(waiting_.end(), moved, one);  // behind those whose turn comes next
      });
    }
    return through;
  }

 private:
  static constexpr int most_accepted = 16;          // in a turn: fewer than may go on
  static constexpr std::size_t most_advanced = 32;  // in a turn: a TLS handshake takes some 0.3 ms of the processor

  struct Waiting {
    Stranger stranger;
    std::string address, peer;
    Instant since, until;
  };
  using Place = typename std::list<Waiting>::iterator;

  void refuse(Place place, const std::string& cause) {
    const Waiting refused = std::move(*place);
    waiting_.erase(place);
    refused_(refused.peer, cause);  // before its connection ends
  }
  void evict(Place place) { refuse(place, "it has shown no credential, and others wait"); }

  void make_room(const std::string& newcomer) {
    waiting_.sort([](const Waiting& a, const Waiting& b) { return a.since < b.since; });
    std::vector<std::string> addresses;
    for (const Waiting& each : waiting_) addresses.push_back(each.address);
    if (const auto victim = stranger_to_evict(addresses, newcomer, limits_))
      evict(std::next(waiting_.begin(), static_cast<std::ptrdiff_t>(*victim)));
  }

  // Whatever goes wrong costs this connection, and nothing else.
  template <class Work>
  void guarded(const std::string& peer, const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      refused_(peer, error.what());
    }
  }

  StrangerLimits limits_;
  Refused refused_;
  std::list<Waiting> waiting_;
};

// A stranger of whom TLS shows all.
class TlsStranger {
 public:
  TlsStranger(FileDescriptor socket, const TlsContext& tls) : stream_(std::move(socket)) {
    stream_.start_tls(tls, TlsSide::server);
  }
  int descriptor() const { return stream_.descriptor(); }
  short events() const { return stream_.wanted(); }
  bool advance() { return stream_.advance_tls(); }
  ByteStream take_stream() { return std::move(stream_); }

 private:
  ByteStream stream_;
};

// A stranger in the handshake of handshake.hpp, under TLS where a context is given.
class LinkStranger {
 public:
  LinkStranger(FileDescriptor socket, const TlsContext* tls, const std::string& key);

  int descriptor() const { return stream_.descriptor(); }
  short events() const { return stream_.encrypted() ? stream_.wanted() : POLLIN; }
  bool advance();

  const HeardHello& heard() const { return *heard_; }  // once advance() was true
  ByteStream& stream() { return stream_; }

 private:
  ByteStream stream_;
  const std::string* key_;
  bool securing_;
  Hearing hearing_;
  std::optional<HeardHello> heard_;
};

}  // namespace motley
