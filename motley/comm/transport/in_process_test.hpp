// Ranks that are threads of one process: frames pass through queues. The plainest transport there is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

// The fabric must outlive the transports, which may be used from one thread each.
class InProcessFabric {
 public:
  explicit InProcessFabric(int ranks);
  ~InProcessFabric();
  std::unique_ptr<Transport> transport(int rank);
  // As if the rank had died: all others lose it, and it loses all others.
  void lose(int rank, const std::string& cause);

 private:
  struct State;
  class Link;
  std::unique_ptr<State> state_;
};

constexpr std::size_t frames_under_way = 16;  // from one rank to another

struct QueuedFrame {
  CollectiveFrame frame;
  std::vector<std::byte> payload;
};

// What a rank sleeps on, and what others tell it.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;                            // something may have changed since the last wait
  std::vector<std::deque<QueuedFrame>> arrived;  // by sender
  std::vector<std::string> lost;                 // by peer: why; empty where it is not
  std::deque<QueuedFrame> revocations;           // overtake what has arrived
};

struct InProcessFabric::State {
  explicit State(int ranks) : inboxes(static_cast<std::size_t>(ranks)) {
    for (Inbox& inbox : inboxes) {
      inbox.arrived.resize(inboxes.size());
      inbox.lost.resize(inboxes.size());
    }
  }
  void wake(std::size_t rank) {
    {
      const std::lock_guard lock(inboxes[rank].mutex);
      inboxes[rank].woken = true;
    }
    inboxes[rank].changed.notify_all();
  }
  std::vector<Inbox> inboxes;
};

class InProcessFabric::Link : public Transport {
 public:
  Link(State& state, int rank) : state_(state), rank_(rank), traffic_(state.inboxes.size()) {
    for (LinkTraffic& traffic : traffic_) traffic.kind = "local";
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(traffic_.size()); }

  bool send(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) override {
    MOTLEY_CHECK(payload.size() == frame.length && payload.size() <= largest_payload_bytes);
    Inbox& inbox = state_.inboxes[static_cast<std::size_t>(peer)];
    {
      const std::lock_guard lock(inbox.mutex);
      auto& queue = inbox.arrived[self()];
      if (queue.size() >= frames_under_way || !inbox.lost[self()].empty()) return false;
      queue.push_back({frame, {payload.begin(), payload.end()}});
      inbox.woken = true;
    }
    inbox.changed.notify_all();
    traffic_[static_cast<std::size_t>(peer)].sent_bytes +=
        static_cast<std::int64_t>(collective_header_bytes + payload.size());
    return true;
  }

  void revoke(const CollectiveFrame& frame, const std::string& cause) override {
    const auto payload = std::as_bytes(std::span(cause));
    for (std::size_t peer = 0; peer < traffic_.size(); ++peer) {
      if (peer == self()) continue;
      {
        const std::lock_guard lock(state_.inboxes[peer].mutex);
        state_.inboxes[peer].revocations.push_back({frame, {payload.begin(), payload.end()}});
      }
      state_.wake(peer);
    }
  }

  bool poll(FrameSink& sink) override {
    bool moved = false;
    {
      std::deque<QueuedFrame> revocations;
      {
        const std::lock_guard lock(mine().mutex);
        revocations.swap(mine().revocations);
      }
      for (const QueuedFrame& queued : revocations) sink.on_frame(-1, queued.frame, queued.payload);
    }
    for (std::size_t peer = 0; peer < traffic_.size(); ++peer)
      while (take(peer, sink)) moved = true;
    return moved;
  }

  void wait(double seconds) override {
    std::unique_lock lock(mine().mutex);
    mine().changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return mine().woken; });
    mine().woken = false;
  }
  void wake() override { state_.wake(self()); }
  bool flushed() const override { return true; }
  double now_s() const override { return motley::now_s(); }
  const LinkTraffic& traffic(int peer) const override { return traffic_[static_cast<std::size_t>(peer)]; }

 private:
  std::size_t self() const { return static_cast<std::size_t>(rank_); }
  Inbox& mine() const { return state_.inboxes[self()]; }

  // Offers the first frame of the peer; what it sent before it was lost is still delivered.
  bool take(std::size_t peer, FrameSink& sink) {
    QueuedFrame* head = nullptr;
    std::string lost;
    {
      const std::lock_guard lock(mine().mutex);
      auto& queue = mine().arrived[peer];
      if (!queue.empty()) head = &queue.front();  // stays where it is while others append
      lost = mine().lost[peer];
    }
    if (head == nullptr) {
      if (!lost.empty()) sink.on_lost(static_cast<int>(peer), lost);
      return false;
    }
    if (sink.on_frame(static_cast<int>(peer), head->frame, head->payload) == FrameSink::Verdict::later) return false;
    traffic_[peer].received_bytes += static_cast<std::int64_t>(collective_header_bytes + head->payload.size());
    {
      const std::lock_guard lock(mine().mutex);
      mine().arrived[peer].pop_front();
    }
    state_.wake(peer);  // there is room again
    return true;
  }

  State& state_;
  int rank_;
  std::vector<LinkTraffic> traffic_;
};

inline InProcessFabric::InProcessFabric(int ranks) : state_(std::make_unique<State>(ranks)) {}
inline InProcessFabric::~InProcessFabric() = default;

inline std::unique_ptr<Transport> InProcessFabric::transport(int rank) { return std::make_unique<Link>(*state_, rank); }

inline void InProcessFabric::lose(int rank, const std::string& cause) {
  for (std::size_t peer = 0; peer < state_->inboxes.size(); ++peer) {
    Inbox& inbox = state_->inboxes[peer];
    {
      const std::lock_guard lock(inbox.mutex);
      for (std::size_t other = 0; other < inbox.lost.size(); ++other)
        if (other != peer && (static_cast<int>(other) == rank || static_cast<int>(peer) == rank))
          inbox.lost[other] = cause;
    }
    state_->wake(peer);
  }
}

}  // namespace motley
