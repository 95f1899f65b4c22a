// The weights of the served model on this machine: read in place from its own copy of the model, or fetched into the
// cache; and sent to other members.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "motley/agent/chunk_service.hpp"
#include "motley/agent/known_sources.hpp"
#include "motley/agent/weights_fetch.hpp"
#include "motley/base/clock.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {

struct LocalWeightsOptions {
  std::string name;                  // of this machine
  std::string driver;                // its address
  std::filesystem::path cache;       // a folder
  std::uint64_t cache_bytes = 0;     // at most, of all models
  std::filesystem::path model = {};  // this machine's own copy: a folder or GGUF file; empty: none
  std::function<void(const std::string& detail)> report = {};
};

class LocalWeights {
 public:
  // `wake` is notified when the progress() of a fetch changes.
  LocalWeights(LocalWeightsOptions options, const Wakeup& wake);
  ~LocalWeights();
  LocalWeights(const LocalWeights&) = delete;
  LocalWeights& operator=(const LocalWeights&) = delete;

  // Takes requests of the members that the driver has named, at a port of this address. Only the first call counts.
  // Throws as ControlListener does.
  void listen(const std::string& address, const RelayAccess& access);
  std::string address() const { return listener_ ? listener_->address() : std::string(); }

  // What is served from now on. `alive` is called now and then while this machine's own copy, or what an earlier
  // process has left in the cache, is compared with it. Throws a peer error for what is not a manifest, an environment
  // error where the cache cannot be written.
  void set_manifest(const ModelManifest& manifest, const std::function<void()>& alive);
  // Throws a peer error where the sources hold what the model does not have.
  void set_sources(const std::vector<WeightsSource>& told) { sources_->set(told); }

  bool known() const { return cache_ != nullptr; }            // which weights are served
  bool has_own() const { return !own_.empty(); }              // nothing is to be fetched
  bool has_chunks(const std::vector<ChunkId>& chunks) const;  // the model does
  std::filesystem::path model() const;                        // what a worker opens

  // To be let go of when it is done or not needed any more: it then ends without being waited for.
  std::shared_ptr<WeightsFetch> fetch(const std::vector<ChunkId>& chunks, const RelayAccess& access);

  // On a new connection: the driver knows nothing of what is here, and is told once it has said what is served.
  void forget_told() { told_held_.reset(); }
  // What it is to be told now. Also ends what fetch() has returned and is not needed any more.
  std::vector<AgentMessage> news();

 private:
  std::string objection_to(const LinkHello& hello, const std::string& certified) const;
  std::vector<std::byte> read(const ChunkId& id);
  bool is_own(const ModelManifest& manifest, const std::function<void()>& alive) const;
  void say(const std::string& detail) const;

  const LocalWeightsOptions options_;
  const Wakeup& wake_;
  const std::shared_ptr<KnownSources> sources_;
  std::mutex mutex_;  // of the two that follow, which one thread alone changes
  std::shared_ptr<ChunkCache> cache_;
  std::filesystem::path own_;
  std::optional<std::vector<ChunkRange>> told_held_;  // none: the driver is not to be told
  Instant told_ = {};
  std::list<std::shared_ptr<WeightsFetch>> fetches_;
  ChunkService service_;
  std::unique_ptr<ControlListener> listener_;  // its threads use the rest
};

}  // namespace motley
