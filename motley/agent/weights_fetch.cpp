#include "motley/agent/weights_fetch.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <system_error>
#include <utility>

#include "motley/agent/agent_messages.hpp"
#include "motley/base/survive.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {
namespace {

constexpr double reach_s = 5;            // to reach a source
constexpr double answer_s = 60;          // for the next chunk
constexpr std::size_t most_members = 4;  // that are asked at once
constexpr int most_driver_failures = 5;  // in a row,
constexpr double driver_pause_s = 0.5;   // after each of which it is asked again
constexpr double unreachable_s = 5;      // until a member that cannot be reached is asked again
constexpr double refused_s = 0.5;        // until one is that refuses
constexpr double late_s = 1;             // until a chunk is asked of another source as well
constexpr double idle_s = 2;             // until a source that has nothing to send is hung up on
constexpr std::chrono::milliseconds look_every(100);

}  // namespace

// While it lives, the fetch can end what waits for this source.
class WeightsFetch::SocketInUse {
 public:
  SocketInUse(WeightsFetch& fetch, std::string source, int socket) : fetch_(fetch), source_(std::move(source)) {
    const std::lock_guard lock(fetch_.mutex_);
    fetch_.sockets_[source_] = socket;
  }
  ~SocketInUse() {
    const std::lock_guard lock(fetch_.mutex_);
    fetch_.sockets_.erase(source_);
  }
  SocketInUse(const SocketInUse&) = delete;
  SocketInUse& operator=(const SocketInUse&) = delete;

 private:
  WeightsFetch& fetch_;
  const std::string source_;
};

WeightsFetch::WeightsFetch(std::shared_ptr<ChunkCache> cache, const std::vector<ChunkId>& chunks,
                           std::shared_ptr<KnownSources> sources, std::string name, RelayAccess access,
                           const Wakeup& wake)
    : cache_(std::move(cache)),
      sources_(std::move(sources)),
      name_(std::move(name)),
      access_(std::move(access)),
      wake_(wake) {
  std::vector<ChunkId> missing = cache_->missing(chunks);
  // Machines that read the same chunks begin at different ones, so that they soon have something for each other.
  if (!missing.empty())
    std::ranges::rotate(missing, missing.begin() + std::hash<std::string>()(name_) % missing.size());
  for (const ChunkId& id : missing) {
    items_.push_back({.id = id});
    progress_.of_bytes += chunk_size(cache_->manifest().files[id.file], id.chunk);
  }
  left_ = items_.size();
  thread_ = std::jthread([this] { run(); });
}

WeightsFetch::~WeightsFetch() { stop(); }

void WeightsFetch::stop() {
  const std::lock_guard lock(mutex_);
  end({});
}

FetchProgress WeightsFetch::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

// Under the mutex.
void WeightsFetch::end(const std::string& failure) {
  if (over_) return;
  over_ = true;
  progress_.failure = failure;
  for (const auto& [source, socket] : sockets_) ::shutdown(socket, SHUT_RDWR);
  changed_.notify_all();
  wake_.notify();
}

void WeightsFetch::run() {
  std::unique_lock lock(mutex_);
  survive(
      [&] {
        while (!over_ && left_ > 0) {
          start_runners();
          changed_.wait_for(lock, look_every);
        }
      },
      [this](const std::exception& error) { end(error.what()); });
  progress_.done = left_ == 0;
  end({});
  std::map<std::string, Runner> runners = std::exchange(runners_, {});
  lock.unlock();
  runners.clear();  // joins
  ended_ = true;
  wake_.notify();
}

// Under the mutex.
void WeightsFetch::start_runners() {
  std::erase_if(runners_, [](const auto& runner) { return runner.second.ended; });
  const auto all = sources_->all();
  for (const auto& [source, socket] : sockets_)  // a machine that is lost does not even close its connection
    if (std::ranges::find(*all, source, &ChunkSource::name) == all->end()) ::shutdown(socket, SHUT_RDWR);
  for (const ChunkSource& source : *all) {
    if (runners_.contains(source.name) || choose(source, *all) == nullptr) continue;
    if (source.is_driver() ? seconds_until(driver_again_) > 0
                           : !sources_->usable(source.name) || runners_.size() > most_members)
      continue;
    Runner& runner = runners_[source.name];
    try {
      runner.thread = std::jthread([this, &runner, all, &source] {
        fetch_from(source);
        const std::lock_guard lock(mutex_);
        runner.ended = true;
        changed_.notify_all();
      });
    } catch (const std::system_error& error) {
      runners_.erase(source.name);
      return end(fmt::format("cannot start a thread: {}", error.what()));
    }
  }
}

// Under the mutex. What a source should be asked for next; null: nothing now. The driver is asked first for what no
// member holds. What another source is slow to send comes last.
WeightsFetch::Item* WeightsFetch::choose(const ChunkSource& source, const std::vector<ChunkSource>& all) {
  const auto members_hold = [&](const ChunkId& id) {
    return std::ranges::any_of(all, [&](const ChunkSource& one) { return !one.is_driver() && one.has(id); });
  };
  Item* held_by_members = nullptr;
  Item* late = nullptr;
  for (Item& item : items_) {
    if (item.done || !source.has(item.id) || item.lacked.contains(source.name)) continue;
    if (item.asked.empty()) {
      if (!source.is_driver() || !members_hold(item.id)) return &item;
      if (held_by_members == nullptr) held_by_members = &item;
    } else if (late == nullptr && !item.asked.contains(source.name) && seconds_since(item.since) > late_s) {
      late = &item;
    }
  }
  return held_by_members != nullptr ? held_by_members : late;
}

// ---- a source's thread ----

void WeightsFetch::fetch_from(const ChunkSource& source) {
  try {
    LinkHello hello;
    hello.group = weights_service;
    hello.from_id = name_;
    BlockingMessageStream stream(call_service(source.address, hello, access_, deadline_in(reach_s), source.name),
                                 chunk_bytes);
    const SocketInUse in_use(*this, source.name, stream.descriptor());
    take_chunks(source, stream);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    take_failure(source, error);
  } catch (const std::exception& error) {  // the machine is short of something, whatever the source
    const std::lock_guard lock(mutex_);
    take_failure(source, Error(ErrorCode::environment, error.what()));
  }
}

void WeightsFetch::take_chunks(const ChunkSource& source, BlockingMessageStream& stream) {
  while (Item* item = ask_next(source.name)) {
    stream.send(encode_request({item->id}), deadline_in(answer_s));
    const auto bytes = stream.receive(deadline_in(answer_s));
    if (!bytes) throw Error(ErrorCode::peer, "it has closed the connection");
    take_answer(source, *item, std::as_bytes(std::span(*bytes)));
  }
}

// Null: this source has had nothing to send for a while, or the fetch is over.
WeightsFetch::Item* WeightsFetch::ask_next(const std::string& source) {
  std::unique_lock lock(mutex_);
  for (const Instant until = deadline_in(idle_s); !over_ && seconds_until(until) > 0;
       changed_.wait_for(lock, look_every)) {
    const auto all = sources_->all();
    const auto now = std::ranges::find(*all, source, &ChunkSource::name);
    if (now == all->end()) return nullptr;
    if (Item* item = choose(*now, *all)) {
      item->asked.insert(source);
      item->since = Clock::now();
      return item;
    }
  }
  return nullptr;
}

void WeightsFetch::take_answer(const ChunkSource& source, Item& item, std::span<const std::byte> bytes) {
  const bool lacks = bytes.empty() && !source.is_driver();
  if (!lacks) try {
      cache_->put(item.id, bytes);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::peer && !source.is_driver())
        sources_->avoid(source.name, KnownSources::for_good, error.what());
      throw;
    }
  const std::lock_guard lock(mutex_);
  item.asked.erase(source.name);
  if (lacks) item.lacked.insert(source.name);
  if (lacks || item.done) return;
  item.done = true;
  --left_;
  driver_failures_ = 0;
  progress_.bytes += bytes.size();
  progress_.from[source.name] += bytes.size();
  wake_.notify();
  if (left_ == 0) changed_.notify_all();
}

// Under the mutex. What has come is kept; the rest comes from others, or in another attempt.
void WeightsFetch::take_failure(const ChunkSource& source, const Error& error) {
  for (Item& item : items_) item.asked.erase(source.name);
  if (over_) return;
  if (error.code() == ErrorCode::environment) return end(error.what());
  if (!source.is_driver()) {
    // A member refuses until the driver has named this machine to it, which may be a moment later.
    if (error.code() == ErrorCode::input) return sources_->avoid(source.name, refused_s, {});
    return sources_->avoid(source.name, unreachable_s, error.what());
  }
  if (error.code() == ErrorCode::input) return end(error.what());  // it refuses
  driver_again_ = deadline_in(driver_pause_s);
  const bool others = std::ranges::any_of(items_, [](const Item& item) { return !item.asked.empty(); });
  if (!others && ++driver_failures_ >= most_driver_failures) end(error.what());
}

}  // namespace motley
