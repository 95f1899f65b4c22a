// Fetches chunks of weights into this machine's cache, from the driver and from members at once. Each source is asked
// for the next chunk when it has sent one, so that the fastest sends the most.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "motley/agent/known_sources.hpp"
#include "motley/base/error.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {

class BlockingMessageStream;

struct FetchProgress {
  std::uint64_t bytes = 0, of_bytes = 0;
  std::map<std::string, std::uint64_t> from = {};  // bytes by source; "": the driver
  bool done = false;
  std::string failure;  // why it has ended without all of them
};

class WeightsFetch {
 public:
  // As the machine `name`. `wake` is notified when progress() changes. It fails where the driver cannot send a chunk
  // and no member does, and where the cache cannot be written.
  WeightsFetch(std::shared_ptr<ChunkCache> cache, const std::vector<ChunkId>& chunks,
               std::shared_ptr<KnownSources> sources, std::string name, RelayAccess access, const Wakeup& wake);
  ~WeightsFetch();  // stops, and waits until it has ended
  WeightsFetch(const WeightsFetch&) = delete;
  WeightsFetch& operator=(const WeightsFetch&) = delete;

  FetchProgress progress() const;
  // Gives up, without waiting.
  void stop();
  // Its threads have ended: to connect to a machine that is gone may take them seconds.
  bool ended() const { return ended_; }

 private:
  struct Item {
    ChunkId id;
    bool done = false;
    std::set<std::string> asked = {};   // sources that are asked for it now
    std::set<std::string> lacked = {};  // members that turned out not to have it
    Instant since = {};                 // when the latest was asked
  };
  struct Runner {
    bool ended = false;
    std::jthread thread = {};
  };
  class SocketInUse;

  void run();
  void start_runners();
  void fetch_from(const ChunkSource& source);
  void take_chunks(const ChunkSource& source, BlockingMessageStream& stream);
  Item* ask_next(const std::string& source);
  Item* choose(const ChunkSource& source, const std::vector<ChunkSource>& all);
  void take_answer(const ChunkSource& source, Item& item, std::span<const std::byte> bytes);
  void take_failure(const ChunkSource& source, const Error& error);
  void end(const std::string& failure);

  const std::shared_ptr<ChunkCache> cache_;
  const std::shared_ptr<KnownSources> sources_;
  const std::string name_;
  const RelayAccess access_;
  const Wakeup& wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FetchProgress progress_;
  std::vector<Item> items_;
  std::size_t left_ = 0;       // items that are not done
  int driver_failures_ = 0;    // since a chunk has come, from wherever
  Instant driver_again_ = {};  // not before
  bool over_ = false;
  std::map<std::string, int> sockets_;     // in use, by source
  std::map<std::string, Runner> runners_;  // by source
  std::atomic<bool> ended_ = false;
  std::jthread thread_;
};

}  // namespace motley
