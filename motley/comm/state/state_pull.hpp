// Which chunk a joiner asks of whom, without sockets and without a clock: events in, requests out.
//
// Equal chunks are pulled once, chunks that are there already not at all. A peer that is lost or too slow gives its
// chunks back; one that sends wrong bytes is left out for good. When nothing is left to ask for, idle peers are asked
// for what slower ones still owe: the first to deliver counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "motley/comm/state/state_manifest.hpp"

namespace motley {

struct StatePullOptions {
  int requests_per_peer = 2;      // under way at once
  double progress_timeout_s = 5;  // a peer that owes chunks and delivers none for so long is left out
};

struct StateRequest {
  int peer = 0;
  StateDigest chunk;
  std::int64_t bytes = 0;  // of the chunk
  bool operator==(const StateRequest&) const = default;
};

// What a peer did. `fault` says why it is left out; empty for good peers.
struct StatePeerReport {
  std::int64_t bytes = 0;
  std::string fault;
};

class StatePull {
 public:
  // `destination` has the manifest's names and sizes, in its order. What lies there and has the right digest is kept.
  StatePull(StateManifest manifest, std::vector<StateBuffer<std::byte>> destination, StatePullOptions options);

  void add_peer(int peer, double now_s);
  // The connection is gone, or the peer says that it cannot help.
  void lose_peer(int peer, const std::string& cause);
  // The next requests, given what is under way.
  std::vector<StateRequest> requests(double now_s);
  // True: the chunk was wanted and is right. Wrong bytes, and chunks that were not asked for, lose the peer.
  bool deliver(int peer, const StateDigest& chunk, std::span<const std::byte> bytes, double now_s);
  // Leaves out peers that owe and have not delivered; bytes that arrive count through heard().
  void heard(int peer, double now_s);
  void expire(double now_s);

  bool done() const { return missing_ == 0; }
  std::int64_t kept_bytes() const { return kept_bytes_; }  // were there from the start
  bool active(int peer) const;
  const std::map<int, StatePeerReport>& peers() const { return reports_; }
  const StateManifest& manifest() const { return manifest_; }

 private:
  struct Place {
    std::size_t item, index;
  };
  struct Chunk {
    StateDigest digest;
    std::int64_t bytes = 0;
    std::vector<Place> places;
    bool there = false;
    std::set<int> asked;  // peers that owe it
  };
  struct Peer {
    std::vector<std::size_t> owed;  // chunks
    double heard_s = 0;
  };

  std::optional<std::size_t> choose(int peer);
  std::span<std::byte> span_of(const Place& place) const;
  std::string name_of(const Chunk& chunk) const;

  StateManifest manifest_;
  std::vector<StateBuffer<std::byte>> destination_;
  StatePullOptions options_;
  std::vector<Chunk> chunks_;
  std::map<StateDigest, std::size_t> by_digest_;
  std::set<std::size_t> unasked_;
  std::map<int, Peer> active_;
  std::map<int, StatePeerReport> reports_;
  std::size_t missing_ = 0;
  std::int64_t kept_bytes_ = 0;
};

}  // namespace motley
