// Constructors of collective programs: the candidates of the planner, the defaults of the library.
//
// A program is made of rounds of transfers; a transfer is a send at one rank and a receive or a reduction at another.
// A reduce-scatter follows a hierarchy of groups: each group first lets its members reduce among themselves, then
// splits what they hold; its mirror image is the all-gather. One group of all ranks is the direct exchange (a
// co-located parameter server), nested groups are the factored form, a group may also go round as a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/plan/collective_program.hpp"

namespace motley {

struct CollectiveTransfer {
  int from = 0, to = 0;
  std::int64_t first = 0, last = 0;                      // bytes inside the chunk
  CollectiveStepKind kind = CollectiveStepKind::reduce;  // what the receiver does: reduce or recv
  bool operator==(const CollectiveTransfer&) const = default;
};
using CollectiveRound = std::vector<CollectiveTransfer>;

enum class GroupPattern {
  direct,  // in one round, everybody from everybody
  ring     // in members - 1 rounds, each from its neighbour
};

// A rank, or members that reduce among themselves first.
struct CollectiveGroup {
  int rank = -1;
  GroupPattern pattern = GroupPattern::direct;
  std::vector<CollectiveGroup> members = {};
  bool operator==(const CollectiveGroup&) const = default;
};

// All ranks as one group; the order counts in a ring.
CollectiveGroup flat_group(const std::vector<int>& ranks, GroupPattern pattern);
// Groups of factors[0] neighbours, these in groups of factors[1], ... until one is left. Where a factor does not
// divide, groups differ by one member at most. Factors are at least 2; throws an input error where they do not lead to
// one group.
CollectiveGroup factored_group(int ranks, const std::vector<int>& factors);

// A range that ends with the sum of all ranks at `owner`.
struct CollectiveBlock {
  int owner = 0;
  std::int64_t first = 0, last = 0;
};

// Consecutive ranges of `bytes` in proportion to the weights, rank r's the r-th; borders are multiples of `alignment`
// bytes but for the last. Equal where `weights` is empty.
std::vector<CollectiveBlock> share_blocks(std::int64_t bytes, int ranks, const std::vector<double>& weights,
                                          std::int64_t alignment);
// The same, laid out so that what moves together in the group's rounds lies side by side.
std::vector<CollectiveBlock> share_blocks(std::int64_t bytes, const CollectiveGroup& group,
                                          const std::vector<double>& weights, std::int64_t alignment);

// Rounds after which every block's owner holds the sum; transfers of one pair of ranks stand side by side. Empty blocks
// are left out.
std::vector<CollectiveRound> reduce_scatter_rounds(const CollectiveGroup& group,
                                                   const std::vector<CollectiveBlock>& blocks);
// The way back: rounds in reverse, each transfer turned round and received instead of reduced.
std::vector<CollectiveRound> mirrored(const std::vector<CollectiveRound>& rounds);

// The range goes from the root (whose parent is -1) down a tree, a rank to all its children in one round.
std::vector<CollectiveRound> broadcast_rounds(const std::vector<int>& parents, std::int64_t first, std::int64_t last);
// Parents of a tree over the ranks in which none has more than `degree` children; degree 1 is a chain.
std::vector<int> tree_parents(int ranks, int root, int degree);

struct CollectiveShape {
  CollectiveOperation operation = CollectiveOperation::all_reduce;
  int ranks = 0;
  int root = 0;
  std::int64_t bytes = 0;
  int chunks = 1;
  std::int64_t alignment = 16;  // of the borders between ranges, bytes: a multiple of the element's size
};

// The rounds one after the other. In a round each rank sends first, beginning with the peers after it.
CollectiveProgram program_of_rounds(const CollectiveShape& shape, const std::vector<CollectiveRound>& rounds);

// Along a hierarchy; `weights` are the owners' shares of an all_reduce (empty: equal). Not for broadcasts. Throws an
// input error where reduce_scatter or all_gather cannot have equal blocks, or the chunks do not divide the bytes.
CollectiveProgram grouped_program(const CollectiveShape& shape, const CollectiveGroup& group,
                                  const std::vector<double>& weights);
CollectiveProgram direct_program(const CollectiveShape& shape, const std::vector<double>& weights);
CollectiveProgram ring_program(const CollectiveShape& shape, const std::vector<int>& order);
CollectiveProgram factored_program(const CollectiveShape& shape, const std::vector<int>& factors);
// A broadcast down a tree, or, as the first half of an all_reduce, up and down it.
CollectiveProgram tree_program(const CollectiveShape& shape, const std::vector<int>& parents);

// The largest number of chunks up to `wanted` that cuts the vector into equal chunks whose borders are aligned.
int chunks_that_fit(const CollectiveShape& shape, int wanted);

}  // namespace motley
