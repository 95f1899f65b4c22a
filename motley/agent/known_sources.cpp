#include "motley/agent/known_sources.hpp"

#include <algorithm>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {

void KnownSources::set_manifest(const ModelManifest& manifest) {
  const std::lock_guard lock(mutex_);
  manifest_ = manifest;
  all_ = std::make_shared<const std::vector<ChunkSource>>(1, ChunkSource{.name = {}, .address = driver_});
}

void KnownSources::set(const std::vector<WeightsSource>& told) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> named;
  std::vector<ChunkSource> sources{{.name = {}, .address = driver_}};
  for (const WeightsSource& member : told) {
    if (member.name.empty()) throw Error(ErrorCode::peer, "a source of weights without a name");
    named.insert(member.name);
    if (member.address.empty() || member.chunks.empty()) continue;
    ChunkSource& source = sources.emplace_back(ChunkSource{member.name, member.address});
    for (const ManifestFile& file : manifest_.files) source.held.emplace_back(file.digests.size(), 0);
    for (const ChunkRange& range : member.chunks) {
      if (!has_chunks(manifest_, range)) throw Error(ErrorCode::peer, "a chunk that the model does not have");
      std::vector<char>& file = source.held[range.file];
      std::fill(file.begin() + range.first, file.begin() + range.end, 1);
    }
  }
  named_ = std::move(named);
  all_ = std::make_shared<const std::vector<ChunkSource>>(std::move(sources));
}

std::shared_ptr<const std::vector<ChunkSource>> KnownSources::all() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

bool KnownSources::names(const std::string& member) const {
  const std::lock_guard lock(mutex_);
  return named_.contains(member);
}

void KnownSources::avoid(const std::string& member, double seconds, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (is_usable(member) && !cause.empty()) news_.push_back({member, cause});
  Instant& until = avoided_until_[member];
  until = std::max(until, deadline_in(seconds));
}

bool KnownSources::is_usable(const std::string& member) const {
  const auto avoided = avoided_until_.find(member);
  return avoided == avoided_until_.end() || seconds_until(avoided->second) <= 0;
}

bool KnownSources::usable(const std::string& member) const {
  const std::lock_guard lock(mutex_);
  return is_usable(member);
}

std::vector<BadSource> KnownSources::take_news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

}  // namespace motley
