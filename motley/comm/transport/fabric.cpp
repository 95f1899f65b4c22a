#include "motley/comm/transport/fabric.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/survive.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/transport/edge.hpp"
#include "motley/comm/transport/mesh.hpp"

namespace motley {
namespace {

constexpr int deadline_check_ms = 500;
constexpr std::size_t most_exchanges = 64;  // of descriptors of shared memory, at once

std::string local_name(const std::string& address) { return "motley/" + address; }

enum class Dialling { first, again };

struct FabricStranger : LinkStranger {
  FabricStranger(FileDescriptor socket, const TlsContext* tls, const std::string& key, bool through_file_system)
      : LinkStranger(std::move(socket), tls, key), is_local(through_file_system) {}
  bool is_local;
};

}  // namespace

struct Fabric::State {
  using Key = std::tuple<std::string, std::uint64_t, int>;  // group, epoch, rank

  FabricOptions options;
  std::unique_ptr<Listener> listener;
  FileDescriptor local;
  Wakeup stopped;
  std::thread acceptor;

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  // Making or ending connections. Those that are over are joined: what a thread leaves to its last moment (OpenSSL its
  // errors) must not meet the end of the process.
  std::list<std::thread> threads, over_threads;
  std::atomic<std::size_t> exchanges = 0;
  std::set<int> open_sockets;  // of those threads: shut down to stop them
  std::map<Key, std::shared_ptr<LinkArrivals>> expected;
  std::map<std::string, std::uint64_t> over;  // by group: the last epoch that ended here

  // ---- threads ----

  template <class Work>
  bool start(Work work) {
    join_those_over();
    const std::lock_guard lock(mutex);
    if (stopping) return false;
    const auto place = threads.emplace(threads.end());
    try {
      *place = std::thread([this, place, work = std::move(work)]() mutable {
        survive(work, [](const std::exception&) {});
        const std::lock_guard done(mutex);
        over_threads.splice(over_threads.end(), threads, place);
        changed.notify_all();
      });
    } catch (const std::system_error& error) {
      threads.erase(place);
      throw Error(ErrorCode::environment, fmt::format("cannot start a thread: {}", error.what()),
                  "raise the limit of processes (ulimit -u)");
    }
    return true;
  }

  void join_those_over() {
    std::list<std::thread> joined;
    {
      const std::lock_guard lock(mutex);
      joined.swap(over_threads);
    }
    for (std::thread& thread : joined) thread.join();
  }

  void stop() {
    {
      std::unique_lock lock(mutex);
      stopping = true;
      for (const int socket : open_sockets) ::shutdown(socket, SHUT_RDWR);
      changed.notify_all();
    }
    stopped.notify();
    acceptor.join();
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return threads.empty(); });
    }
    join_those_over();
  }

  // False when the fabric ends meanwhile.
  bool sleep_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, time, [&] { return stopping; });
  }

  // Keeps a socket where stop() finds it.
  struct Stoppable {
    State& state;
    int socket;
    Stoppable(State& owner, int number) : state(owner), socket(number) {
      const std::lock_guard lock(state.mutex);
      state.open_sockets.insert(socket);
      if (state.stopping) ::shutdown(socket, SHUT_RDWR);
    }
    Stoppable(const Stoppable&) = delete;
    Stoppable& operator=(const Stoppable&) = delete;
    ~Stoppable() {
      const std::lock_guard lock(state.mutex);
      state.open_sockets.erase(socket);
    }
  };

  // What a relay passes on may come from anywhere.
  bool encrypts(const std::string& address, int socket) const {
    switch (options.encryption) {
      case Encryption::never: return false;
      case Encryption::always: return true;
      case Encryption::off_loopback: return is_relayed(address) || !peer_is_local(socket);
    }
    return true;
  }

  RelayAccess relay_access() const { return {options.key, options.identity, options.encryption}; }

  const TlsContext& identity() const {
    if (!options.identity)
      throw Error(ErrorCode::peer,
                  "this connection leaves the machine and needs TLS, but this member has no certificate",
                  "give it a folder that `motley group issue` made");
    return *options.identity;
  }

  // ---- accepting ----

  void accept_all() {
    Strangers<FabricStranger> strangers(options.strangers);
    for (bool ends = false; !ends;) survive([&] { ends = !accept_some(strangers); }, [](const std::exception&) {});
  }

  // False when the fabric ends.
  bool accept_some(Strangers<FabricStranger>& strangers) {
    std::vector<pollfd> waiting{
        {listener->descriptor(), POLLIN, 0}, {local.get(), POLLIN, 0}, {stopped.descriptor(), POLLIN, 0}};
    strangers.watch(waiting);
    ::poll(waiting.data(), waiting.size(), strangers.empty() ? -1 : deadline_check_ms);
    if (waiting[2].revents != 0) return false;
    for (const bool is_local : {false, true})
      strangers.take_in([&] { return is_local ? accept_connection(local.get()) : listener->accept(); },
                        [&](FileDescriptor socket) {
                          const bool encrypted = !is_local && encrypts(listener->address(), socket.get());
                          return FabricStranger(std::move(socket), encrypted ? &identity() : nullptr, options.key,
                                                is_local);
                        });
    for (FabricStranger& stranger : strangers.advance()) {
      // A stranger has been told what is wrong with it where it could be told.
      survive([&] { receive(std::move(stranger)); }, [](const std::exception&) {});
    }
    return true;
  }

  // What is sent here is short and does not wait.
  void receive(FabricStranger stranger) {
    const HeardHello& heard = stranger.heard();
    const LinkHello& hello = heard.hello;
    ByteStream& stream = stranger.stream();
    const bool is_local = stranger.is_local;

    std::shared_ptr<LinkArrivals> arrivals;
    LinkWelcome welcome;
    {
      const std::lock_guard lock(mutex);
      const auto found = expected.find({hello.group, hello.epoch, hello.to});
      if (found != expected.end()) arrivals = found->second;
      const auto ended = over.find(hello.group);
      if (!arrivals && ended != over.end() && hello.epoch <= ended->second)
        welcome = {LinkAnswer::refused, fmt::format("epoch {} is over here", hello.epoch)};
      else if (!arrivals)
        welcome = {LinkAnswer::not_yet, {}};
    }
    if (arrivals) {
      std::string wrong = objection(hello, arrivals->epoch(), arrivals->rank(), stream.peer_name());
      if (hello.purpose == LinkPurpose::relay_listen || hello.purpose == LinkPurpose::relay_call)
        wrong = "the other side is not a relay";
      if (wrong.empty() && (hello.purpose == LinkPurpose::shared_memory) != is_local &&
          (hello.purpose == LinkPurpose::stream || hello.purpose == LinkPurpose::shared_memory))
        wrong = "shared memory requested over TCP, or a stream over a local socket";
      if (!wrong.empty()) welcome = {LinkAnswer::refused, wrong};
    }
    if (hello.purpose == LinkPurpose::control) welcome = {LinkAnswer::refused, "this is not a driver"};
    answer(stream, heard, welcome, options.key, Clock::now());
    if (welcome.answer != LinkAnswer::welcome || hello.purpose == LinkPurpose::probe) return;
    LinkArrival arrival{.peer = hello.from, .purpose = hello.purpose, .stream = hello.stream, .side = 1};
    if (hello.purpose == LinkPurpose::revoke) {
      arrival.revocation = hello.word;
      arrivals->put(std::move(arrival));
      return;
    }
    arrival.connection = std::move(stream);
    if (hello.purpose == LinkPurpose::shared_memory) return exchange_descriptors(arrivals, std::move(arrival));
    arrivals->put(std::move(arrival));
  }

  void exchange_descriptors(const std::shared_ptr<LinkArrivals>& arrivals, LinkArrival arrival) {
    const auto counted = std::shared_ptr<void>(nullptr, [this](void*) { --exchanges; });
    if (++exchanges > most_exchanges) return;  // closed: the other side dials again
    start([this, arrivals, counted, held = std::make_shared<LinkArrival>(std::move(arrival))] {
      const auto until = deadline_in(options.strangers.handshake_s);
      const int socket = held->connection.descriptor();
      const Stoppable stoppable(*this, socket);
      auto passed = receive_descriptors(socket, 2, until);
      send_descriptors(socket, {arrivals->doorbell().descriptor()}, until);
      held->memory = std::move(passed[0]);
      held->doorbell = std::move(passed[1]);
      arrivals->put(std::move(*held));
    });
  }

  // ---- dialling ----

  // Tries until the other side has taken the connection, has refused it, or `until`.
  void dial(LinkArrivals& arrivals, LinkArrival arrival, Dialling dialling, Instant until, std::int64_t window_bytes) {
    const Member& member = arrivals.epoch().members[static_cast<std::size_t>(arrival.peer)];
    std::string cause = "no answer";
    bool failed = false;
    // An attempt that the deadline cut short says less than one that ended by itself.
    const auto fails = [&](const std::string& why) {
      if (std::exchange(failed, true) && Clock::now() >= until) return;
      cause = why;
      arrivals.note(arrival.peer, cause);
    };
    for (auto pause = std::chrono::milliseconds(2); Clock::now() < until;
         pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
      ConnectFailure failure;
      const bool shared = arrival.purpose == LinkPurpose::shared_memory;
      try {
        FileDescriptor socket = shared
                                    ? connect_local(local_name(member.address), failure)
                                    : connect_to(member.address, relay_access(),
                                                 std::min(until, deadline_in(options.strangers.handshake_s)), failure);
        if (!socket) {
          fails(failure.cause);
          if (failure.refused && dialling == Dialling::again) break;
        } else {
          const LinkWelcome welcome = introduce(arrivals, arrival, std::move(socket), until, window_bytes);
          if (welcome.answer == LinkAnswer::welcome) {
            if (arrival.connection.open()) arrivals.put(std::move(arrival));
            return;
          }
          if (welcome.answer == LinkAnswer::refused) {
            arrival.refusal = welcome.cause;
            break;
          }
          fails("it does not know this epoch yet");
        }
      } catch (const std::exception& error) {
        fails(error.what());
      }
      if (!sleep_for(pause)) return;
    }
    if (arrival.refusal.empty()) arrival.refusal = cause;
    arrival.connection.close();
    arrivals.put(std::move(arrival));
  }

  LinkWelcome introduce(LinkArrivals& arrivals, LinkArrival& arrival, FileDescriptor socket, Instant until,
                        std::int64_t window_bytes) {
    const Epoch& epoch = arrivals.epoch();
    const Member& self = epoch.members[static_cast<std::size_t>(arrivals.rank())];
    const Member& member = epoch.members[static_cast<std::size_t>(arrival.peer)];
    const Stoppable stoppable(*this, socket.get());
    const auto patience = std::min(until, deadline_in(options.strangers.handshake_s));
    const bool encrypted = arrival.purpose != LinkPurpose::shared_memory && encrypts(member.address, socket.get());
    ByteStream stream(std::move(socket));
    if (encrypted) {
      stream.secure_as_client(identity(), patience);
      if (!vouches_for(stream.peer_name(), member.id))
        return {LinkAnswer::refused, fmt::format("the certificate at {} names \"{}\", not \"{}\"", member.address,
                                                 stream.peer_name(), member.id)};
    }
    const LinkHello hello{.purpose = arrival.purpose,
                          .group = epoch.group,
                          .epoch = epoch.number,
                          .from = static_cast<std::uint16_t>(arrivals.rank()),
                          .to = static_cast<std::uint16_t>(arrival.peer),
                          .from_id = self.id,
                          .incarnation = self.incarnation,
                          .stream = arrival.stream,
                          .word = arrival.revocation};
    LinkWelcome welcome = client_handshake(stream, hello, options.key, patience);
    if (welcome.answer != LinkAnswer::welcome) return welcome;
    if (arrival.purpose == LinkPurpose::shared_memory) {
      arrival.memory = make_shared_edge_memory(window_bytes);
      send_descriptors(stream.descriptor(), {arrival.memory.get(), arrivals.doorbell().descriptor()}, patience);
      arrival.doorbell = std::move(receive_descriptors(stream.descriptor(), 1, patience)[0]);
    }
    if (arrival.purpose == LinkPurpose::stream || arrival.purpose == LinkPurpose::shared_memory)
      arrival.connection = std::move(stream);
    return welcome;
  }

  void start_dial(const std::shared_ptr<LinkArrivals>& arrivals, int peer, LinkPurpose purpose, std::uint16_t stream,
                  const std::string& word, Dialling dialling, Instant until, std::int64_t window_bytes) {
    start([this, arrivals, peer, purpose, stream, word, dialling, until, window_bytes] {
      dial(*arrivals, {.peer = peer, .purpose = purpose, .stream = stream, .revocation = word}, dialling, until,
           window_bytes);
    });
  }

  bool shares_memory(const Member& a, const Member& b) const {
    return options.shared_memory == SharedMemoryUse::same_host && !a.host.empty() && a.host == b.host;
  }
};

Fabric::Fabric(FabricOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
  state_->listener = listen_at(state_->options.listen, state_->relay_access());
  state_->local = listen_local(local_name(address()));
  state_->acceptor = std::thread([state = state_.get()] { state->accept_all(); });
}

Fabric::~Fabric() { state_->stop(); }

const std::string& Fabric::address() const { return state_->listener->address(); }

std::unique_ptr<Transport> Fabric::connect(const Epoch& epoch, int rank, double timeout_s, std::stop_token stop,
                                           std::int64_t window_bytes) {
  State& state = *state_;
  if (rank < 0 || static_cast<std::size_t>(rank) >= epoch.members.size())
    throw input_error(fmt::format("rank {} of {} members", rank, epoch.members.size()),
                      "give this process's place in the list of members, from 0");
  const auto until = deadline_in(timeout_s);
  const auto arrivals = std::make_shared<LinkArrivals>(epoch, rank);
  const State::Key key{epoch.group, epoch.number, rank};
  {
    const std::lock_guard lock(state.mutex);
    if (!state.expected.try_emplace(key, arrivals).second)
      throw input_error(
          fmt::format("epoch {} of \"{}\" is already connected as rank {}", epoch.number, epoch.group, rank),
          "connect once per epoch and rank: a later group takes the next epoch's number, or another name");
  }
  auto mesh =
      make_mesh({.arrivals = arrivals,
                 .most_streams = state.options.most_streams,
                 .patience_s = state.options.patience_s,
                 .dial =
                     [&state, arrivals, window_bytes](int peer, LinkPurpose purpose, std::uint16_t stream,
                                                      const std::string& word) {
                       state.start_dial(arrivals, peer, purpose, stream, word, Dialling::again,
                                        deadline_in(state.options.patience_s), window_bytes);
                     },
                 .closed =
                     [&state, key](std::vector<FileDescriptor> sockets) {
                       {
                         const std::lock_guard lock(state.mutex);
                         state.expected.erase(key);
                         auto& last = state.over[std::get<0>(key)];
                         last = std::max(last, std::get<1>(key));
                       }
                       if (sockets.empty()) return;
                       // Where it cannot be waited for, what is still on its way is lost with the connection.
                       survive(
                           [&] {
                             state.start([held = std::make_shared<std::vector<FileDescriptor>>(std::move(sockets))] {
                               drain(std::move(*held), Clock::now() + drain_time);
                             });
                           },
                           [](const std::exception&) {});
                     }});
  // The higher rank dials.
  for (int peer = 0; peer < rank; ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    const bool shared = state.shares_memory(epoch.members[index], epoch.members[static_cast<std::size_t>(rank)]);
    state.start_dial(arrivals, peer, shared ? LinkPurpose::shared_memory : LinkPurpose::stream, 0, {}, Dialling::first,
                     until, window_bytes);
  }
  // By address: another thread may ask to stop while `mesh` is moved into what is returned.
  const std::stop_callback on_stop(stop, [woken = mesh.get()] { woken->wake(); });
  const auto called = [&](int peer) {
    const Member& member = epoch.members[static_cast<std::size_t>(peer)];
    return fmt::format("rank {} (\"{}\" at {})", peer, member.id, member.address);
  };
  for (;;) {
    const std::vector<int> missing = mesh->unconnected();
    if (missing.empty()) return mesh;
    const auto [peer, cause] = mesh->refusal();
    if (peer >= 0) throw ConnectError(ErrorCode::peer, fmt::format("cannot reach {}: {}", called(peer), cause), {peer});
    if (stop.stop_requested()) throw Error(ErrorCode::interrupted, "asked to stop while connecting");
    const double left_s = seconds_until(until);
    if (left_s <= 0) {
      const std::string noted = arrivals->noted(missing.front()), own = state.listener->trouble();
      throw ConnectError(ErrorCode::limit,
                         fmt::format("{} did not connect within {} s{}{}{}{}", called(missing.front()), timeout_s,
                                     noted.empty() ? "" : ": ", noted,
                                     own.empty() ? "" : "; no member can connect to this one: ", own),
                         missing);
    }
    mesh->wait(std::min(left_s, 0.1));
  }
}

}  // namespace motley
