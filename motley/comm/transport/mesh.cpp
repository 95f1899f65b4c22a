#include "motley/comm/transport/mesh.hpp"

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <map>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/transport/edge.hpp"

namespace motley {

void LinkArrivals::put(LinkArrival arrival) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(arrival));
    any_.store(true, std::memory_order_release);
  }
  doorbell_.notify();
}

std::vector<LinkArrival> LinkArrivals::take() {
  const std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_release);
  return std::exchange(waiting_, {});
}

void LinkArrivals::note(int peer, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  notes_[peer] = cause;
}

std::string LinkArrivals::noted(int peer) {
  const std::lock_guard lock(mutex_);
  return notes_[peer];
}

namespace {

constexpr std::uint32_t doorbell_peer = 0xffffffffU;
constexpr int quiet_polls = 256;  // between looks at descriptors where all edges are shared memory
// How long a wait looks for frames before it sleeps: more than what falling asleep and being woken cost, which on
// virtual machines is 100 us at times. With 50 us, 32 to 96 KiB by TCP took twice as long there
// (docs/figures/collectives-benchmarks.md).
constexpr double spin_s = 200e-6;
// Where members share processors, looking takes them from those that are waited for.
constexpr double crowded_spin_s = 25e-6;
constexpr double busy_s = 3e-6;  // of that without letting others run

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

class SocketMesh : public Mesh {
 public:
  explicit SocketMesh(MeshOptions options)
      : options_(std::move(options)),
        arrivals_(*options_.arrivals),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        edges_(arrivals_.epoch().members.size()),
        refusals_(edges_.size()) {
    if (!epoll_) throw Error(ErrorCode::environment, "cannot create an epoll descriptor");
    watch(epoll_.get(), arrivals_.doorbell().descriptor(), static_cast<int>(doorbell_peer), 0);
    const auto here = std::count_if(arrivals_.epoch().members.begin(), arrivals_.epoch().members.end(),
                                    [&](const Member& member) { return member.host == self().host; });
    crowded_ = here > static_cast<std::ptrdiff_t>(std::thread::hardware_concurrency());
  }
  ~SocketMesh() override {
    std::vector<FileDescriptor> sockets;
    for (auto& edge : edges_)
      if (edge)
        for (FileDescriptor& socket : edge->release()) sockets.push_back(std::move(socket));
    if (options_.closed) options_.closed(std::move(sockets));
  }

  int rank() const override { return arrivals_.rank(); }
  int size() const override { return static_cast<int>(edges_.size()); }

  bool send(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) override {
    MOTLEY_CHECK(payload.size() == frame.length && payload.size() <= largest_payload_bytes);
    Edge* edge = edges_[static_cast<std::size_t>(peer)].get();
    return edge != nullptr && edge->send(frame, payload);
  }

  void revoke(const CollectiveFrame& frame, const std::string& cause) override {
    for (auto& edge : edges_)
      if (edge) edge->revoke(frame, cause);
  }

  bool poll(FrameSink& sink) override {
    bool moved = false;
    if (streams_ > 0 || ++quiet_ >= quiet_polls) {
      quiet_ = 0;
      look(0);
    }
    if (arrivals_.any()) {
      adopt();
      moved = true;
    }
    if (!revoked_by_.empty()) hand_on_revocations(sink);
    // A rank begins behind itself, so that not everybody empties the same one first.
    const double now = streams_ > 0 ? now_s() : 0;
    for (int offset = 1; offset < size(); ++offset) {
      Edge* edge = edges_[static_cast<std::size_t>((rank() + offset) % size())].get();
      if (edge != nullptr && edge->poll(sink, now)) moved = true;
    }
    return moved;
  }

  void wait(double seconds) override {
    // First a look at memory, for answers that are under way; then others may use this processor to answer; then sleep.
    const double start_s = now_s();
    const double until_s = start_s + std::min(seconds, crowded_ ? crowded_spin_s : spin_s);
    for (int round = 0;; ++round) {
      if (ready()) return;
      if (streams_ > 0)
        look(0);
      else
        pause();
      if (!crowded_ && (round & 15) != 15) continue;
      const double now = now_s();
      if (now >= until_s) break;
      if (crowded_ || now >= start_s + busy_s) ::sched_yield();
    }
    for (auto& edge : edges_)
      if (edge) edge->fall_asleep();
    if (!ready()) look(static_cast<int>(std::ceil(seconds * 1e3)));
    for (auto& edge : edges_)
      if (edge) edge->wake_up();
  }

  void wake() override {
    woken_.store(true);
    arrivals_.doorbell().notify();
  }
  bool flushed() const override {
    for (const auto& edge : edges_)
      if (edge && !edge->flushed()) return false;
    return true;
  }
  double now_s() const override { return motley::now_s(); }
  const LinkTraffic& traffic(int peer) const override {
    static const LinkTraffic none;
    const Edge* edge = edges_[static_cast<std::size_t>(peer)].get();
    return edge != nullptr ? edge->traffic() : none;
  }

  std::vector<int> unconnected() override {
    if (arrivals_.any()) adopt();
    std::vector<int> peers;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank() && !edges_[static_cast<std::size_t>(peer)]) peers.push_back(peer);
    return peers;
  }
  std::pair<int, std::string> refusal() const override {
    for (int peer = 0; peer < size(); ++peer)
      if (!refusals_[static_cast<std::size_t>(peer)].empty() && !edges_[static_cast<std::size_t>(peer)])
        return {peer, refusals_[static_cast<std::size_t>(peer)]};
    return {-1, {}};
  }

 private:
  const Member& self() const { return arrivals_.epoch().members[static_cast<std::size_t>(rank())]; }

  void hand_on_revocations(FrameSink& sink) {
    for (const auto& [peer, cause] : std::exchange(revoked_by_, {})) {
      const CollectiveFrame frame{.kind = FrameKind::revoke,
                                  .group = group_hash(arrivals_.epoch().group),
                                  .epoch = arrivals_.epoch().number,
                                  .length = static_cast<std::uint32_t>(cause.size())};
      sink.on_frame(peer, frame, std::as_bytes(std::span(cause)));
    }
  }

  bool ready() {
    if (woken_.exchange(false) || arrivals_.any()) return true;
    for (const auto& edge : edges_)
      if (edge && edge->looks_ready()) return true;
    return false;
  }

  // Tells the edges what happened on their descriptors; waits up to that long for something to happen.
  void look(int milliseconds) {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
    for (int i = 0; i < count; ++i) {
      const auto peer = static_cast<std::uint32_t>(events[static_cast<std::size_t>(i)].data.u64 >> 32);
      const auto part = static_cast<std::uint32_t>(events[static_cast<std::size_t>(i)].data.u64);
      if (peer == doorbell_peer) {
        arrivals_.doorbell().clear();
      } else if (edges_[peer]) {
        edges_[peer]->on_event(part, events[static_cast<std::size_t>(i)].events);
      }
    }
  }

  void adopt() {
    for (LinkArrival& arrival : arrivals_.take()) {
      const auto peer = static_cast<std::size_t>(arrival.peer);
      auto* streams = dynamic_cast<StreamEdge*>(edges_[peer].get());
      try {
        if (!arrival.refusal.empty()) {
          refusals_[peer] = arrival.refusal;
          if (streams != nullptr) streams->refused(arrival.stream, arrival.refusal);
        } else if (arrival.purpose == LinkPurpose::revoke) {
          revoked_by_[arrival.peer] = arrival.revocation;
        } else if (arrival.purpose == LinkPurpose::shared_memory) {
          if (!edges_[peer])
            edges_[peer] = open_shared_edge(arrival.peer, arrival.side, arrival.memory, std::move(arrival.doorbell),
                                            arrival.connection.take_socket(), epoll_.get());
        } else {
          if (!edges_[peer]) streams = new_stream_edge(arrival.peer);
          if (streams != nullptr) streams->adopt(arrival.stream, std::move(arrival.connection));
        }
      } catch (const Error& error) {
        refusals_[peer] = error.what();
      }
    }
  }

  StreamEdge* new_stream_edge(int peer) {
    auto edge = open_stream_edge(
        {.peer = peer,
         .dials = rank() > peer,
         .most_streams = options_.most_streams,
         .patience_s = options_.patience_s,
         .epoll = epoll_.get(),
         .dial = [this, peer](LinkPurpose purpose, std::uint16_t stream) { options_.dial(peer, purpose, stream, {}); },
         .revoke = [this, peer](const std::string& cause) { options_.dial(peer, LinkPurpose::revoke, 0, cause); }});
    StreamEdge* raw = edge.get();
    edges_[static_cast<std::size_t>(peer)] = std::move(edge);
    ++streams_;
    return raw;
  }

  MeshOptions options_;
  LinkArrivals& arrivals_;
  FileDescriptor epoll_;
  std::vector<std::unique_ptr<Edge>> edges_;  // by peer
  std::vector<std::string> refusals_;
  std::map<int, std::string> revoked_by_;  // peers, and why; to be handed on
  std::atomic<bool> woken_{false};
  bool crowded_ = false;  // more members here than processors
  int streams_ = 0;       // peers behind sockets
  int quiet_ = 0;
};

}  // namespace

std::unique_ptr<Mesh> make_mesh(MeshOptions options) { return std::make_unique<SocketMesh>(std::move(options)); }

}  // namespace motley
