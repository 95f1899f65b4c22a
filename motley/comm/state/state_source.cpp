#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/survive.hpp"
#include "motley/comm/state/state_transfer.hpp"

namespace motley {
namespace {

constexpr std::size_t max_group_bytes = 256;
constexpr std::size_t max_requests = 16;  // of one joiner that wait for their answer
constexpr double hello_s = 5;             // until a joiner has said what it wants

StateDigest digest_in(std::span<const std::byte> payload) {
  StateDigest digest;
  if (payload.size() < state_digest_bytes) throw Error(ErrorCode::peer, "sent a message that is too short");
  std::memcpy(digest.bytes.data(), payload.data(), state_digest_bytes);
  return digest;
}

}  // namespace

struct StateSource::Published {
  StateSnapshot snapshot;
  std::string manifest;
  StateDigest digest;
  std::map<StateDigest, std::span<const std::byte>> chunks;
};

struct StateSource::Joiner {
  StateConnection connection;
  double came_s, heard_s;
  bool greeted = false;  // its hello has come
  bool leaving = false;  // once what is queued has gone
  bool listens() const { return !leaving && connection.queued_messages() <= max_requests; }
};

class StateSource::Service {
 public:
  explicit Service(StateSource& source) : source_(source), out_(source.options_.bytes_per_s) {}

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) survive([this] { serve_all(); }, [](const std::exception&) {});
  }

 private:
  void serve_all() {
    wait();
    withdraw_where_asked();
    while (!full()) {
      ByteStream stream = source_.listener_.accept();
      if (!stream.open()) break;
      make_room();
      joiners_.push_back({StateConnection(std::move(stream), state_digest_bytes + max_group_bytes), now_s(), now_s()});
    }
    // In turns: who was first is last next time.
    for (auto joiner = joiners_.begin(); joiner != joiners_.end();)
      joiner = serve(*joiner) ? std::next(joiner) : joiners_.erase(joiner);
    if (joiners_.size() > 1) joiners_.splice(joiners_.end(), joiners_, joiners_.begin());
  }

  std::size_t most_joiners() const { return static_cast<std::size_t>(source_.options_.connections); }

  // A joiner that has not said what it wants makes room for the next.
  bool full() const { return joiners_.size() >= most_joiners() && std::ranges::all_of(joiners_, &Joiner::greeted); }
  void make_room() {
    if (joiners_.size() < most_joiners()) return;
    const auto goes_first = [](const Joiner& a, const Joiner& b) {
      return std::pair(a.greeted, a.came_s) < std::pair(b.greeted, b.came_s);
    };
    joiners_.erase(std::ranges::min_element(joiners_, goes_first));
  }

  void wait() {
    const double paced_s = out_.wait_s(now_s());
    bool writing = false;
    std::vector<pollfd> files{{source_.wakeup_.descriptor(), POLLIN, 0}, {source_.listener_.descriptor(), POLLIN, 0}};
    if (full()) files.pop_back();
    for (const auto& joiner : joiners_) {
      const bool ready = joiner.connection.writing() && paced_s <= 0;
      writing = writing || joiner.connection.writing();
      files.push_back({joiner.connection.descriptor(),
                       static_cast<short>((joiner.listens() ? POLLIN : 0) | (ready ? POLLOUT : 0)), 0});
    }
    double wait_s = writing && paced_s > 0 ? paced_s : 1;
    if (source_.listener_.pending()) wait_s = std::min(wait_s, 0.02);
    if (std::any_of(joiners_.begin(), joiners_.end(),
                    [](const Joiner& each) { return each.listens() && each.connection.pending(); }))
      wait_s = 0;
    poll(files.data(), files.size(), static_cast<int>(std::ceil(wait_s * 1e3)));
  }

  void withdraw_where_asked() {
    source_.wakeup_.clear();
    const std::lock_guard lock(source_.mutex_);
    if (!source_.withdrawing_) return;
    joiners_.clear();
    source_.withdrawing_ = false;
    source_.withdrawn_.notify_all();
  }

  // False: this joiner is done with.
  bool serve(Joiner& joiner) {
    try {
      StatePace unlimited(0);
      while (joiner.listens()) {
        const std::uint64_t before = joiner.connection.received_bytes();
        const auto message = joiner.connection.receive(unlimited, now_s());
        if (joiner.connection.received_bytes() > before) joiner.heard_s = now_s();
        if (!message) break;
        answer(joiner, *message);
      }
      if (joiner.connection.write_some(out_, now_s()) > 0) joiner.heard_s = now_s();
      if (!joiner.greeted && now_s() - joiner.came_s > hello_s) return false;
      return (!joiner.leaving || joiner.connection.writing()) &&
             now_s() - joiner.heard_s < source_.options_.idle_timeout_s;
    } catch (const std::exception&) {
      return false;  // it has gone, or it is not a joiner: no one here waits for it
    }
  }

  void refuse(Joiner& joiner, const std::string& why) {
    joiner.connection.queue(StateMessageKind::refusal, why);
    joiner.leaving = true;
  }

  void answer(Joiner& joiner, const StateMessage& message) {
    const StateDigest wanted = digest_in(message.payload);
    const std::lock_guard lock(source_.mutex_);
    if (message.kind == StateMessageKind::hello) {
      joiner.greeted = true;
      const std::string group(reinterpret_cast<const char*>(message.payload.data()) + state_digest_bytes,
                              message.payload.size() - state_digest_bytes);
      if (group != source_.options_.group)
        return refuse(joiner, fmt::format("is of group \"{}\"", source_.options_.group));
      for (const auto& published : source_.published_)
        if (published->digest == wanted)
          return joiner.connection.queue(StateMessageKind::manifest, {}, std::as_bytes(std::span(published->manifest)),
                                         published);
      return refuse(joiner, fmt::format("does not hold state {}", to_hex(wanted)));
    }
    if (message.kind != StateMessageKind::request || message.payload.size() != state_digest_bytes)
      return refuse(joiner, "expected the request of a chunk");
    for (const auto& published : source_.published_)
      if (const auto chunk = published->chunks.find(wanted); chunk != published->chunks.end())
        return joiner.connection.queue(
            StateMessageKind::chunk,
            std::string_view(reinterpret_cast<const char*>(wanted.bytes.data()), state_digest_bytes), chunk->second,
            published);
    refuse(joiner, fmt::format("does not hold chunk {}", to_hex(wanted)));
  }

  StateSource& source_;
  StatePace out_;
  std::list<Joiner> joiners_;
};

StateSource::StateSource(StateListener listener, StateSourceOptions options)
    : options_(std::move(options)), listener_(std::move(listener)) {
  if (options_.group.size() > max_group_bytes)
    throw input_error(
        fmt::format("the group's name has {} bytes, more than {}", options_.group.size(), max_group_bytes),
        "choose a shorter `group` in the coordinator and all members");
  thread_ = std::jthread([this](const std::stop_token& stop) { Service(*this).run(stop); });
}

StateSource::~StateSource() {
  thread_.request_stop();
  wakeup_.notify();
  thread_.join();
}

void StateSource::publish(StateSnapshot snapshot) {
  auto published = std::make_shared<Published>();
  published->manifest = encode_manifest(snapshot.manifest);
  published->digest = sha256(std::as_bytes(std::span(published->manifest)));
  for (std::size_t i = 0; i < snapshot.manifest.items.size(); ++i) {
    const auto& item = snapshot.manifest.items[i];
    for (std::size_t index = 0; index < item.chunks.size(); ++index) {
      const auto [first, last] = chunk_range(item, index);
      published->chunks[item.chunks[index]] =
          snapshot.items.at(i).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
    }
  }
  published->snapshot = std::move(snapshot);
  const std::lock_guard lock(mutex_);
  published_.insert(published_.begin(), std::move(published));
  if (published_.size() > static_cast<std::size_t>(std::max(options_.snapshots, 1))) published_.pop_back();
}

void StateSource::withdraw() {
  std::unique_lock lock(mutex_);
  published_.clear();
  withdrawing_ = true;
  wakeup_.notify();
  withdrawn_.wait(lock, [this] { return !withdrawing_; });
}

}  // namespace motley
