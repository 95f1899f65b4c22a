#include "motley/comm/state/state_pull.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::size_t most_askers = 2;  // of one chunk at the same time

}  // namespace

StatePull::StatePull(StateManifest manifest, std::vector<StateBuffer<std::byte>> destination, StatePullOptions options)
    : manifest_(std::move(manifest)), destination_(std::move(destination)), options_(options) {
  if (destination_.size() != manifest_.items.size())
    throw input_error(
        fmt::format("the state has {} parts here and {} there", destination_.size(), manifest_.items.size()),
        "build the same model and optimizer on all members");
  for (std::size_t i = 0; i < manifest_.items.size(); ++i) {
    const auto& item = manifest_.items[i];
    const auto& [name, bytes] = destination_[i];
    if (name != item.name || static_cast<std::int64_t>(bytes.size()) != item.bytes)
      throw input_error(fmt::format("part {} of the state is \"{}\" of {} bytes here, \"{}\" of {} there", i, name,
                                    bytes.size(), item.name, item.bytes),
                        "build the same model and optimizer on all members");
    for (std::size_t index = 0; index < item.chunks.size(); ++index) {
      const auto [entry, is_new] = by_digest_.try_emplace(item.chunks[index], chunks_.size());
      const auto [first, last] = chunk_range(item, index);
      if (is_new) chunks_.push_back({item.chunks[index], last - first, {}, false, {}});
      // Equal digests of unequal sizes: a manifest that cannot have been made from bytes.
      Chunk& chunk = chunks_[entry->second];
      if (chunk.bytes != last - first)
        throw Error(ErrorCode::peer, fmt::format("chunks of two sizes have the digest {}", to_hex(chunk.digest)));
      chunk.places.push_back({i, index});
    }
  }
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    auto& chunk = chunks_[i];
    std::vector<Place> right, wrong;
    for (const auto& place : chunk.places) (sha256(span_of(place)) == chunk.digest ? right : wrong).push_back(place);
    kept_bytes_ += static_cast<std::int64_t>(right.size()) * chunk.bytes;
    // One right copy serves the other places.
    for (const auto& place : wrong)
      if (!right.empty())
        std::memcpy(span_of(place).data(), span_of(right.front()).data(), static_cast<std::size_t>(chunk.bytes));
    chunk.there = !right.empty();
    if (!chunk.there) unasked_.insert(i);
  }
  missing_ = unasked_.size();
}

std::span<std::byte> StatePull::span_of(const Place& place) const {
  const auto [first, last] = chunk_range(manifest_.items[place.item], place.index);
  return destination_[place.item].bytes.subspan(static_cast<std::size_t>(first),
                                                static_cast<std::size_t>(last - first));
}

std::string StatePull::name_of(const Chunk& chunk) const {
  return fmt::format("chunk {} of \"{}\"", chunk.places.front().index, manifest_.items[chunk.places.front().item].name);
}

void StatePull::add_peer(int peer, double now_s) {
  auto& report = reports_[peer];
  if (report.fault.empty()) active_.try_emplace(peer, Peer{{}, now_s});
}

bool StatePull::active(int peer) const { return active_.contains(peer); }

void StatePull::lose_peer(int peer, const std::string& cause) {
  reports_[peer].fault = cause;
  const auto entry = active_.find(peer);
  if (entry == active_.end()) return;
  for (const std::size_t i : entry->second.owed) {
    auto& chunk = chunks_[i];
    chunk.asked.erase(peer);
    if (!chunk.there && chunk.asked.empty()) unasked_.insert(i);
  }
  active_.erase(entry);
}

// What no peer was asked for, in order; then what the fewest others owe.
std::optional<std::size_t> StatePull::choose(int peer) {
  if (!unasked_.empty()) {
    const std::size_t first = *unasked_.begin();
    unasked_.erase(unasked_.begin());
    return first;
  }
  if (!active_.at(peer).owed.empty()) return std::nullopt;
  std::optional<std::size_t> best;
  for (const auto& [other, state] : active_)
    for (const std::size_t i : state.owed) {
      const auto& chunk = chunks_[i];
      if (chunk.there || chunk.asked.contains(peer) || chunk.asked.size() >= most_askers) continue;
      if (!best || chunk.asked.size() < chunks_[*best].asked.size()) best = i;
    }
  return best;
}

std::vector<StateRequest> StatePull::requests(double now_s) {
  std::vector<StateRequest> result;
  // In turns, so that few chunks are spread over all peers.
  for (int turn = 0; turn < options_.requests_per_peer; ++turn)
    for (auto& [id, peer] : active_) {
      if (peer.owed.size() > static_cast<std::size_t>(turn)) continue;
      const auto chosen = choose(id);
      if (!chosen) continue;
      auto& chunk = chunks_[*chosen];
      if (peer.owed.empty()) peer.heard_s = now_s;  // its time begins
      chunk.asked.insert(id);
      peer.owed.push_back(*chosen);
      result.push_back({id, chunk.digest, chunk.bytes});
    }
  return result;
}

bool StatePull::deliver(int id, const StateDigest& digest, std::span<const std::byte> bytes, double now_s) {
  const auto entry = active_.find(id);
  if (entry == active_.end()) return false;
  auto& owed = entry->second.owed;
  const auto known = by_digest_.find(digest);
  const auto debt = known == by_digest_.end() ? owed.end() : std::find(owed.begin(), owed.end(), known->second);
  if (debt == owed.end()) {
    lose_peer(id, fmt::format("sent chunk {}, for which it was not asked", to_hex(digest)));
    return false;
  }
  auto& chunk = chunks_[known->second];
  if (static_cast<std::int64_t>(bytes.size()) != chunk.bytes || sha256(bytes) != chunk.digest) {
    lose_peer(id, fmt::format("sent wrong bytes for {}", name_of(chunk)));
    return false;
  }
  owed.erase(debt);
  chunk.asked.erase(id);
  entry->second.heard_s = now_s;
  reports_[id].bytes += chunk.bytes;
  if (chunk.there) return false;
  for (const auto& place : chunk.places) std::memcpy(span_of(place).data(), bytes.data(), bytes.size());
  chunk.there = true;
  --missing_;
  return true;
}

void StatePull::heard(int peer, double now_s) {
  if (const auto entry = active_.find(peer); entry != active_.end()) entry->second.heard_s = now_s;
}

void StatePull::expire(double now_s) {
  std::vector<int> late;
  for (const auto& [id, peer] : active_)
    if (!peer.owed.empty() && now_s - peer.heard_s > options_.progress_timeout_s) late.push_back(id);
  for (const int id : late) lose_peer(id, fmt::format("sent nothing for {} s", options_.progress_timeout_s));
}

}  // namespace motley
