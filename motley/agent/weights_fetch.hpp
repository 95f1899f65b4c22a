// Fetches chunks of weights into this machine's cache, on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {

struct FetchProgress {
  std::uint64_t bytes = 0, of_bytes = 0;
  bool done = false;
  std::string failure;  // why it has ended without all of them
};

class WeightsFetch {
 public:
  // From the driver at `address`, as the machine `name`. `wake` is notified when progress() changes.
  WeightsFetch(std::shared_ptr<ChunkCache> cache, std::vector<ChunkId> chunks, std::string address, std::string name,
               RelayAccess access, const Wakeup& wake);
  ~WeightsFetch();  // gives up
  WeightsFetch(const WeightsFetch&) = delete;
  WeightsFetch& operator=(const WeightsFetch&) = delete;

  FetchProgress progress() const;

 private:
  void run(const std::stop_token& stop, const std::vector<ChunkId>& chunks, const std::string& address,
           const std::string& name, const RelayAccess& access);
  void change(const std::function<void(FetchProgress&)>& change);

  const std::shared_ptr<ChunkCache> cache_;
  const Wakeup& wake_;
  mutable std::mutex mutex_;
  FetchProgress progress_;
  int socket_ = -1;  // while it is in use
  std::jthread thread_;
};

}  // namespace motley
