// Ranks in virtual time, for tests: real blocking code on a thread per rank, of which exactly one runs at a time; time
// passes only when all of them wait. What happens depends on the seed alone, and is over as fast as it can be computed.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

// Of every directed pair of ranks; all probabilities are per frame.
struct SimulatedNetwork {
  double latency_s = 1e-3;
  double jitter_s = 1e-3;  // uniform in [0, jitter): frames overtake each other
  double bytes_per_s = 1e9;
  double duplicated = 0;  // arrives twice
  double reset = 0;       // is lost, and with it the connection: both sides lose each other
};

class SimulatedFabric {
 public:
  SimulatedFabric(int ranks, const SimulatedNetwork& network, std::uint64_t seed);
  ~SimulatedFabric();

  // Runs body(rank) for every rank until all have returned or crashed. Once. An exception other than the crash's own
  // ends the run and is thrown on.
  void run(const std::function<void(int rank)>& body);

  // A rank's transport in an epoch, from within its body. Frames of an epoch that the rank has left reach the
  // transport it has now: it must tell them apart.
  std::unique_ptr<Transport> transport(int rank, std::uint64_t epoch);

  double now_s() const;
  // Lets virtual time pass for the rank that calls.
  void sleep(int rank, double seconds);

  // From the given time on: the rank's process is gone, its peers lose it; its body is left by an exception.
  void crash_at(int rank, double time_s);
  // The rank's process stops between the two times, without a word.
  void freeze_at(int rank, double from_s, double until_s);
  // What `from` sends to `to` between the two times disappears, without a word.
  void black_hole(int from, int to, double from_s, double until_s);
  bool crashed(int rank) const;

 private:
  struct State;
  class Link;
  std::unique_ptr<State> state_;
};

namespace {

constexpr double never_s = std::numeric_limits<double>::infinity();
constexpr std::size_t window_frames = 64;  // from one rank to another

struct Crash {};  // leaves a body

struct SimulatedFrame {
  CollectiveFrame frame;
  std::vector<std::byte> payload;
};

// A frame, or the news of a loss, on its way.
struct Delivery {
  int from = 0, to = 0;
  std::optional<SimulatedFrame> frame;
  std::string loss;
};

struct Hole {
  int from = 0, to = 0;
  double from_s = 0, until_s = 0;
};

}  // namespace

struct SimulatedFabric::State {
  struct Rank {
    std::condition_variable turn;
    bool running = false;
    bool done = false;
    bool woken = true;
    double until_s = 0;  // of its wait
    double crash_s = never_s;
    double frozen_from_s = never_s, frozen_until_s = never_s;
    std::vector<Link*> links;                      // newest last
    std::vector<std::list<SimulatedFrame>> inbox;  // by sender
    std::vector<int> under_way;                    // by receiver
    std::vector<std::string> lost;                 // by peer
    std::vector<double> line_free_s;               // by receiver
  };

  State(int count, const SimulatedNetwork& options, std::uint64_t seed)
      : network(options), random(seed, 0), ranks(static_cast<std::size_t>(count)) {
    for (Rank& rank : ranks) {
      rank.inbox.resize(ranks.size());
      rank.under_way.resize(ranks.size());
      rank.lost.resize(ranks.size());
      rank.line_free_s.resize(ranks.size());
    }
  }

  Rank& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }

  bool frozen(const Rank& rank) const { return now_s >= rank.frozen_from_s && now_s < rank.frozen_until_s; }

  // When the rank would go on by itself.
  double ready_s(const Rank& rank) const {
    if (rank.done) return never_s;
    double time_s = rank.woken ? now_s : rank.until_s;
    if (rank.crash_s <= std::max(time_s, now_s)) return std::max(now_s, rank.crash_s);
    if (time_s >= rank.frozen_from_s && time_s < rank.frozen_until_s) time_s = rank.frozen_until_s;
    return std::min(time_s, rank.crash_s);
  }

  void lose(int rank, int peer, const std::string& cause) {
    at(rank).lost[static_cast<std::size_t>(peer)] = cause;
    at(rank).woken = true;
  }

  void post(Delivery delivery, double time_s) { on_the_way.emplace(time_s, std::move(delivery)); }

  void deliver(Delivery delivery) {
    Rank& to = at(delivery.to);
    if (!delivery.loss.empty()) return lose(delivery.to, delivery.from, delivery.loss);
    auto& under_way = at(delivery.from).under_way[static_cast<std::size_t>(delivery.to)];
    under_way = std::max(0, under_way - 1);
    at(delivery.from).woken = true;
    if (to.done) return;
    to.inbox[static_cast<std::size_t>(delivery.from)].push_back(std::move(*delivery.frame));
    to.woken = true;
  }

  // Picks who runs next, letting time pass until a rank can. Under the lock.
  void pass_on() {
    for (;;) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const std::size_t index = (last + 1 + i) % ranks.size();
        if (ready_s(ranks[index]) > now_s) continue;
        last = index;
        ranks[index].running = true;
        ranks[index].turn.notify_one();
        return;
      }
      double next_s = on_the_way.empty() ? never_s : on_the_way.begin()->first;
      for (const Rank& rank : ranks) next_s = std::min(next_s, ready_s(rank));
      if (next_s == never_s) return;  // all are done
      now_s = std::max(now_s, next_s);
      while (!on_the_way.empty() && on_the_way.begin()->first <= now_s) {
        Delivery delivery = std::move(on_the_way.begin()->second);
        on_the_way.erase(on_the_way.begin());
        deliver(std::move(delivery));
      }
    }
  }

  // Gives the turn away until it comes back.
  void wait(int number, double until_s) {
    std::unique_lock lock(mutex);
    Rank& rank = at(number);
    rank.until_s = until_s;
    rank.running = false;
    pass_on();
    rank.turn.wait(lock, [&] { return rank.running; });
    rank.woken = false;
    if (now_s >= rank.crash_s) throw Crash{};
  }

  void finish(int number, bool crashed_now) {
    const std::lock_guard lock(mutex);
    Rank& rank = at(number);
    rank.done = true;
    rank.running = false;
    if (crashed_now) crashed.insert(number);
    // The end of a connection comes after what was sent on it.
    double end_s = now_s + network.latency_s;
    for (const auto& [time_s, delivery] : on_the_way)
      if (delivery.from == number) end_s = std::max(end_s, time_s);
    for (int peer = 0; peer < static_cast<int>(ranks.size()); ++peer)
      if (peer != number) post({number, peer, std::nullopt, "its process is gone"}, end_s);
    pass_on();
  }

  SimulatedNetwork network;
  RandomStream random;
  std::mutex mutex;
  std::vector<Rank> ranks;
  std::size_t last = 0;
  double now_s = 0;
  std::multimap<double, Delivery> on_the_way;
  std::vector<Hole> holes;
  std::set<int> crashed;
};

// Only the rank whose turn it is calls these: nothing needs the lock but waiting.
class SimulatedFabric::Link : public Transport {
 public:
  Link(State& state, int rank, std::uint64_t epoch) : state_(state), rank_(rank), epoch_(epoch) {
    traffic_.resize(state.ranks.size());
    for (LinkTraffic& traffic : traffic_) traffic.kind = "simulated";
    state.at(rank).links.push_back(this);
  }
  ~Link() override { std::erase(state_.at(rank_).links, this); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(traffic_.size()); }
  bool flushed() const override { return true; }
  double now_s() const override { return state_.now_s; }
  const LinkTraffic& traffic(int peer) const override { return traffic_[static_cast<std::size_t>(peer)]; }
  void wait(double seconds) override { state_.wait(rank_, state_.now_s + std::max(0.0, seconds)); }
  void wake() override { state_.at(rank_).woken = true; }

  bool send(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) override {
    State::Rank& self = state_.at(rank_);
    const auto index = static_cast<std::size_t>(peer);
    if (!self.lost[index].empty() || self.under_way[index] >= static_cast<int>(window_frames)) return false;
    put(peer, frame, payload);
    return true;
  }

  void revoke(const CollectiveFrame& frame, const std::string& cause) override {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank_) put(peer, frame, std::as_bytes(std::span(cause)));
  }

  bool poll(FrameSink& sink) override {
    State::Rank& self = state_.at(rank_);
    // Of frames for an epoch that has no transport any more, the newest transport must make sense.
    const auto mine = [&](const CollectiveFrame& frame) {
      const bool other = std::ranges::any_of(
          self.links, [&](const Link* link) { return link != this && link->epoch_ == frame.epoch; });
      return frame.epoch == epoch_ || (!other && self.links.back() == this);
    };
    bool moved = false;
    for (int peer = 0; peer < size(); ++peer) {
      auto& inbox = self.inbox[static_cast<std::size_t>(peer)];
      for (auto frame = inbox.begin(); frame != inbox.end();) {
        if (!mine(frame->frame) || sink.on_frame(peer, frame->frame, frame->payload) == FrameSink::Verdict::later) {
          ++frame;
          continue;
        }
        traffic_[static_cast<std::size_t>(peer)].received_bytes +=
            static_cast<std::int64_t>(collective_header_bytes + frame->payload.size());
        frame = inbox.erase(frame);
        moved = true;
      }
      const std::string& lost = self.lost[static_cast<std::size_t>(peer)];
      if (!lost.empty() && inbox.empty()) sink.on_lost(peer, lost);
    }
    return moved;
  }

 private:
  void put(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) {
    State& state = state_;
    State::Rank& self = state.at(rank_);
    const auto index = static_cast<std::size_t>(peer);
    const auto bytes = static_cast<double>(collective_header_bytes + payload.size());
    traffic_[index].sent_bytes += static_cast<std::int64_t>(bytes);
    for (const Hole& hole : state.holes)
      if (hole.from == rank_ && hole.to == peer && state.now_s >= hole.from_s && state.now_s < hole.until_s) return;
    self.line_free_s[index] = std::max(self.line_free_s[index], state.now_s) + bytes / state.network.bytes_per_s;
    const auto arrival_s = [&] {
      return self.line_free_s[index] + state.network.latency_s + state.network.jitter_s * state.random.uniform();
    };
    if (state.random.chance(state.network.reset)) {
      const double time_s = arrival_s();
      state.post({rank_, peer, std::nullopt, "the connection was reset"}, time_s);
      state.post({peer, rank_, std::nullopt, "the connection was reset"}, time_s);
      return;
    }
    const int copies = state.random.chance(state.network.duplicated) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      ++self.under_way[index];
      state.post({rank_, peer, SimulatedFrame{frame, {payload.begin(), payload.end()}}, {}}, arrival_s());
    }
  }

  State& state_;
  int rank_;
  std::uint64_t epoch_;
  std::vector<LinkTraffic> traffic_;
};

SimulatedFabric::SimulatedFabric(int ranks, const SimulatedNetwork& network, std::uint64_t seed)
    : state_(std::make_unique<State>(ranks, network, seed)) {}
SimulatedFabric::~SimulatedFabric() = default;

void SimulatedFabric::run(const std::function<void(int rank)>& body) {
  State& state = *state_;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(state.ranks.size()); ++rank)
    threads.emplace_back([&, rank] {
      {
        std::unique_lock lock(state.mutex);
        state.at(rank).turn.wait(lock, [&] { return state.at(rank).running; });
        state.at(rank).woken = false;
      }
      bool crashed = false;
      try {
        body(rank);
      } catch (const Crash&) {
        crashed = true;
      } catch (...) {
        failure = std::current_exception();
      }
      state.finish(rank, crashed);
    });
  {
    const std::lock_guard lock(state.mutex);
    state.pass_on();
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

std::unique_ptr<Transport> SimulatedFabric::transport(int rank, std::uint64_t epoch) {
  return std::make_unique<Link>(*state_, rank, epoch);
}

double SimulatedFabric::now_s() const { return state_->now_s; }
void SimulatedFabric::sleep(int rank, double seconds) {
  for (const double until_s = state_->now_s + seconds; state_->now_s < until_s;) state_->wait(rank, until_s);
}
void SimulatedFabric::crash_at(int rank, double time_s) { state_->at(rank).crash_s = time_s; }
void SimulatedFabric::freeze_at(int rank, double from_s, double until_s) {
  state_->at(rank).frozen_from_s = from_s;
  state_->at(rank).frozen_until_s = until_s;
}
void SimulatedFabric::black_hole(int from, int to, double from_s, double until_s) {
  state_->holes.push_back({from, to, from_s, until_s});
}
bool SimulatedFabric::crashed(int rank) const { return state_->crashed.contains(rank); }

}  // namespace motley
