// A program of a collective operation: what every rank sends, receives and adds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motley {

enum class CollectiveOperation { all_reduce, reduce_scatter, all_gather, broadcast };

enum class CollectiveStepKind {
  send,    // this rank's range goes to `peer`
  recv,    // `peer`'s range overwrites this rank's
  reduce,  // `peer`'s range is added to this rank's
  copy     // from this rank's input to its result, where they are not one buffer
};

// One entry of a rank's program. Sends and receives match by peers, chunk and range, in order.
struct CollectiveStep {
  CollectiveStepKind kind = CollectiveStepKind::send;
  int peer = -1;
  int chunk = 0;
  std::int64_t first = 0, last = 0;  // bytes [first, last) inside the chunk
  std::vector<int> after = {};       // places in the same rank's list that must be complete before
  bool operator==(const CollectiveStep&) const = default;
};

// The vector of `bytes` is cut into `chunks` equal chunks. Steps on overlapping ranges of one rank keep the list's
// order whether or not `after` says so (two sends do not disturb each other). Where every step names chunk 0 and
// `chunks` > 1, the program holds for every chunk alike.
//
// In reduce_scatter and all_gather the vector is `ranks` equal blocks, block r being rank r's own; chunk c is the c-th
// part of every block, side by side in the order of the ranks.
struct CollectiveProgram {
  CollectiveOperation operation = CollectiveOperation::all_reduce;
  int ranks = 0;
  int root = 0;  // of a broadcast
  std::int64_t bytes = 0;
  int chunks = 1;
  std::string layout = {};                              // for people: "direct; rack0: 8 x 3"
  std::vector<std::vector<CollectiveStep>> steps = {};  // by rank
  std::int64_t chunk_bytes() const { return bytes / chunks; }
  bool operator==(const CollectiveProgram&) const = default;
};

}  // namespace motley
