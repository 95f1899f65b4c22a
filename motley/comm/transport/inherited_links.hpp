// Connections of processes that one other process starts: it makes all of them beforehand, and each process inherits
// its ends. Nobody listens and nobody dials; a connection that breaks is a lost peer.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/bounded.hpp"
#include "motley/comm/net/epoch.hpp"
#include "motley/comm/net/file_descriptor.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

enum class LinkKind { shared_memory, tcp };
LinkKind link_kind(std::string_view name);  // "shm" or "tcp"; throws an input error

// Numbers of descriptors: of one end of a connection.
struct InheritedLink {
  std::int32_t peer = -1;        // rank
  std::int32_t connection = -1;  // carries the frames; beside shared memory its end tells that of the peer
  std::int32_t memory = -1;      // -1: none, the peer is behind TCP
  std::int32_t doorbell = -1;    // the peer's, which wakes it; with shared memory
  std::uint8_t side = 0;         // of the memory: which of the two rings is ours to write
  bool operator==(const InheritedLink&) const = default;
};

// All that one rank has. Not every rank need be linked with every other: messages are all that may pass then.
struct InheritedLinks {
  std::int32_t doorbell = -1;  // this rank's own
  BoundedList<InheritedLink, max_group_members> links = {};
  bool operator==(const InheritedLinks&) const = default;
};
std::vector<int> descriptors_of(const InheritedLinks& links);

// No number is in the links of two ranks. All close on exec: whoever starts a process clears that flag in the child.
struct LinkEnds {
  std::vector<InheritedLinks> of_rank;
  std::vector<FileDescriptor> owned;  // what the numbers stand for
};
// Links the pairs of ranks. In shared memory a sender may be `window_bytes` ahead of the receiver (1 MiB at least, 64
// at most). Throws an environment error.
LinkEnds make_links(int ranks, const std::vector<std::pair<int, int>>& pairs, LinkKind kind, std::int64_t window_bytes);
std::vector<std::pair<int, int>> all_pairs(int ranks);

// Takes ownership of the descriptors. Throws a peer error where they are not what they should be.
std::unique_ptr<Transport> open_links(const Epoch& epoch, int rank, const InheritedLinks& links);

}  // namespace motley
