// A small state and members that give it, as tests of manifests, pulls and transfers share it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/state/state_manifest.hpp"
#include "motley/comm/state/state_transfer.hpp"

namespace motley::state_test {

using Bytes = std::vector<std::byte>;

constexpr std::int64_t chunk = state_chunk_bytes;

inline Bytes random_bytes(std::int64_t size, std::uint64_t seed) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(size + 7) / 8);
  std::uint64_t state = seed;
  for (auto& word : words) {
    state += 0x9E3779B97F4A7C15;
    word = state * (state >> 31 | 1);
  }
  const auto bytes = std::as_bytes(std::span(words)).first(static_cast<std::size_t>(size));
  return {bytes.begin(), bytes.end()};
}

// Copies the bytes, so that the caller's may change at once.
inline StateSnapshot take_snapshot(StateRevision revision, std::span<const StateBuffer<const std::byte>> buffers) {
  const auto copies = std::make_shared<std::vector<std::vector<std::byte>>>();
  std::vector<StateBuffer<const std::byte>> held;
  for (const auto& [name, bytes] : buffers) {
    copies->emplace_back(bytes.begin(), bytes.end());
    held.push_back(
        {name, copies->back()});  // the bytes of an inner vector stay where they are when the outer one grows
  }
  StateSnapshot snapshot{describe_state(revision, held), {}, copies};
  for (const auto& buffer : held) snapshot.items.push_back(buffer.bytes);
  return snapshot;
}

// Several sizes around the chunk's, an empty item, and two items of equal content.
struct Model {
  std::vector<std::pair<std::string, Bytes>> items;

  explicit Model(std::uint64_t seed) {
    items = {{"embedding", random_bytes(2 * chunk + 5, seed)},
             {"bias", random_bytes(12, seed + 1)},
             {"nothing", {}},
             {"tied", random_bytes(chunk, seed + 2)},
             {"tied too", random_bytes(chunk, seed + 2)},
             {"head", random_bytes(3 * chunk, seed + 3)}};
  }
  std::vector<StateBuffer<const std::byte>> read() const {
    std::vector<StateBuffer<const std::byte>> buffers;
    for (const auto& [name, bytes] : items) buffers.push_back({name, bytes});
    return buffers;
  }
  std::vector<StateBuffer<std::byte>> written() {
    std::vector<StateBuffer<std::byte>> buffers;
    for (auto& [name, bytes] : items) buffers.push_back({name, bytes});
    return buffers;
  }
};

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline StatePeer peer_at(std::string name, std::string address) {
  return {std::move(name), [address = std::move(address)] { return connect_for_state(address); }};
}

struct Members {
  Model model{1};
  StateSnapshot snapshot = take_snapshot({3, 17}, model.read());
  StateDigest agreed = digest(snapshot.manifest);
  std::vector<std::unique_ptr<StateSource>> sources;

  explicit Members(int count, const StateSourceOptions& options = {.group = "g"}) {
    for (int i = 0; i < count; ++i) {
      sources.push_back(std::make_unique<StateSource>(StateListener("127.0.0.1:0"), options));
      sources.back()->publish(snapshot);
    }
  }
  std::vector<StatePeer> peers() const {
    std::vector<StatePeer> result;
    for (const auto& source : sources)
      result.push_back(peer_at("m" + std::to_string(result.size()), source->address()));
    return result;
  }
};

inline StateTransferOutcome pull_into(Model& mine, const Members& members, std::vector<StatePeer> peers,
                                      StateTransferOptions options = {}) {
  options.timeout_s = 60;
  return pull_state(
      "g", members.agreed, peers, [&](const StateManifest&) { return mine.written(); }, options);
}

}  // namespace motley::state_test
