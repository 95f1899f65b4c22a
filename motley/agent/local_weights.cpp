#include "motley/agent/local_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double tell_every_s = 0.5;      // what is held here
constexpr std::size_t most_callers = 16;  // at once

}  // namespace

LocalWeights::LocalWeights(LocalWeightsOptions options, const Wakeup& wake)
    : options_(std::move(options)),
      wake_(wake),
      sources_(std::make_shared<KnownSources>(options_.driver)),
      service_([this](const ChunkId& id) { return read(id); }, most_callers) {}

LocalWeights::~LocalWeights() {
  service_.close();
  for (const auto& fetch : fetches_) fetch->stop();
}

void LocalWeights::say(const std::string& detail) const {
  if (options_.report) options_.report(detail);
}

// ---- what is here ----

void LocalWeights::set_manifest(const ModelManifest& manifest, const std::function<void()>& alive) {
  told_held_.emplace();
  if (cache_ && cache_->manifest() == manifest) return;
  check_manifest(manifest);
  const std::filesystem::path own = is_own(manifest, alive) ? options_.model : std::filesystem::path();
  const std::filesystem::path caches = options_.cache / "weights";
  trim_chunk_caches(caches, options_.cache_bytes, manifest.digest());
  auto cache = std::make_shared<ChunkCache>(caches, manifest, alive);
  if (cache->damaged() > 0)
    say(fmt::format("{} of {} MiB in {} were damaged when this machine or its agent went down: they are fetched again",
                    cache->damaged(), chunk_bytes >> 20, caches.string()));
  sources_->set_manifest(manifest);
  const std::lock_guard lock(mutex_);
  own_ = own;
  cache_ = std::move(cache);
}

bool LocalWeights::is_own(const ModelManifest& manifest, const std::function<void()>& alive) const {
  if (options_.model.empty()) return false;
  try {
    if (make_manifest(
            options_.model, options_.cache / "digests", [&](double) { alive(); }, contents_of(manifest)) == manifest)
      return true;
    say(fmt::format("{} does not hold what is served: they are fetched", options_.model.string()));
  } catch (const Error& error) {
    say(fmt::format("{}: they are fetched", error.what()));
  }
  return false;
}

bool LocalWeights::has_chunks(const std::vector<ChunkId>& chunks) const {
  return std::ranges::all_of(chunks, [&](const ChunkId& id) { return has_chunk(cache_->manifest(), id); });
}

std::filesystem::path LocalWeights::model() const { return own_.empty() ? cache_->model() : own_; }

std::shared_ptr<WeightsFetch> LocalWeights::fetch(const std::vector<ChunkId>& chunks, const RelayAccess& access) {
  return fetches_.emplace_back(std::make_shared<WeightsFetch>(cache_, chunks, sources_, options_.name, access, wake_));
}

// ---- for the driver ----

std::vector<AgentMessage> LocalWeights::news() {
  std::erase_if(fetches_, [](const std::shared_ptr<WeightsFetch>& fetch) {
    if (fetch.use_count() > 1) return false;
    fetch->stop();
    return fetch->ended();
  });
  std::vector<AgentMessage> news;
  for (BadSource& bad : sources_->take_news()) {
    say(fmt::format("none come from {}: {}", bad.name, bad.cause));
    news.emplace_back(std::move(bad));
  }
  if (!told_held_ || seconds_since(told_) < tell_every_s) return news;
  told_ = Clock::now();
  std::vector<ChunkRange> held = own_.empty() ? cache_->held() : whole_model(cache_->manifest());
  if (held.size() > max_held_ranges) held.resize(max_held_ranges);
  if (held == *told_held_) return news;
  news.emplace_back(HeldChunks{held});
  told_held_ = std::move(held);
  return news;
}

// ---- for other members; on threads of the listener ----

void LocalWeights::listen(const std::string& address, const RelayAccess& access) {
  if (listener_) return;
  listener_ = std::make_unique<ControlListener>(
      address, access,
      std::map<std::string, ControlService>{
          {weights_service,
           {.admit = [this](const LinkHello& hello,
                            const std::string& certified) { return objection_to(hello, certified); },
            .take =
                [this](const LinkHello& hello, ByteStream stream) {
                  service_.serve(std::move(stream), [&] { return sources_->names(hello.from_id); });
                }}}});
}

std::string LocalWeights::objection_to(const LinkHello& hello, const std::string& certified) const {
  if (certified != hello.from_id) return fmt::format("the certificate names \"{}\"", certified);
  if (!sources_->names(certified)) return "the driver has not named this machine";
  return service_.full() ? fmt::format("{} others fetch weights from here", most_callers) : std::string();
}

std::vector<std::byte> LocalWeights::read(const ChunkId& id) {
  std::shared_ptr<ChunkCache> cache;
  std::filesystem::path own;
  {
    const std::lock_guard lock(mutex_);
    cache = cache_;
    own = own_;
  }
  if (!cache || !has_chunk(cache->manifest(), id))
    throw Error(ErrorCode::peer, "a request for a chunk that the model does not have");
  try {
    if (own.empty()) return cache->get(id);
    return read_chunk(cache->manifest().opens.empty() ? own : own.parent_path(), cache->manifest().files[id.file],
                      id.chunk);
  } catch (const Error&) {
    return {};  // the caller asks another
  }
}

}  // namespace motley
