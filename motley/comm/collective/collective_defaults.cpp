#include "motley/comm/collective/collective_defaults.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/plan/collective_programs.hpp"

namespace motley {
namespace {

constexpr std::int64_t alignment = 64;
constexpr int most_direct_ranks = 16;
constexpr std::int64_t straight_bytes = 64 << 10;  // where shares no longer pay for their extra round

std::vector<int> all_ranks(int ranks) {
  std::vector<int> list(static_cast<std::size_t>(ranks));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// The root deals the shares out, and everybody passes its own on.
CollectiveProgram shared_broadcast(const CollectiveShape& shape) {
  const auto blocks = share_blocks(shape.bytes, shape.ranks, {}, shape.alignment);
  CollectiveRound dealt, passed;
  for (const CollectiveBlock& block : blocks) {
    if (block.owner != shape.root)
      dealt.push_back({shape.root, block.owner, block.first, block.last, CollectiveStepKind::recv});
    for (int rank = 0; rank < shape.ranks; ++rank)
      if (rank != block.owner && rank != shape.root)
        passed.push_back({block.owner, rank, block.first, block.last, CollectiveStepKind::recv});
  }
  return program_of_rounds(shape, {dealt, passed});
}

// Every rank adds up its share, and the root collects them.
CollectiveProgram shared_reduce(const CollectiveShape& shape) {
  const auto blocks = share_blocks(shape.bytes, shape.ranks, {}, shape.alignment);
  auto rounds = reduce_scatter_rounds(flat_group(all_ranks(shape.ranks), GroupPattern::direct), blocks);
  CollectiveRound collected;
  for (const CollectiveBlock& block : blocks)
    if (block.owner != shape.root)
      collected.push_back({block.owner, shape.root, block.first, block.last, CollectiveStepKind::recv});
  rounds.push_back(collected);
  return program_of_rounds(shape, rounds);
}

CollectiveProgram straight_reduce(const CollectiveShape& shape) {
  CollectiveRound round;
  for (int rank = 0; rank < shape.ranks; ++rank)
    if (rank != shape.root) round.push_back({rank, shape.root, 0, shape.bytes, CollectiveStepKind::reduce});
  return program_of_rounds(shape, {round});
}

CollectiveProgram symmetric(const CollectiveShape& shape) {
  return shape.ranks <= most_direct_ranks ? direct_program(shape, {}) : ring_program(shape, all_ranks(shape.ranks));
}

}  // namespace

CollectiveProgram default_program(CollectiveCall call, int ranks, int root, std::int64_t bytes) {
  CollectiveShape shape{.ranks = ranks, .root = root, .bytes = alignment * ranks, .chunks = 1, .alignment = alignment};
  switch (call) {
    case CollectiveCall::all_reduce: shape.operation = CollectiveOperation::all_reduce; return symmetric(shape);
    case CollectiveCall::reduce_scatter: shape.operation = CollectiveOperation::reduce_scatter; return symmetric(shape);
    case CollectiveCall::barrier:
    case CollectiveCall::all_gather: shape.operation = CollectiveOperation::all_gather; return symmetric(shape);
    case CollectiveCall::broadcast:
      shape.operation = CollectiveOperation::broadcast;
      return bytes <= straight_bytes ? tree_program(shape, tree_parents(ranks, root, ranks - 1))
                                     : shared_broadcast(shape);
    case CollectiveCall::reduce: return bytes <= straight_bytes ? straight_reduce(shape) : shared_reduce(shape);
    case CollectiveCall::all_to_all:
    case CollectiveCall::message: break;
  }
  throw Error(ErrorCode::internal, "the operation has no built-in algorithm");
}

std::int64_t default_chunk_bytes(int ranks, std::int64_t bytes) {
  constexpr std::int64_t smallest_share = 16 << 10;
  const std::int64_t share = std::clamp<std::int64_t>(bytes / ranks / 4, smallest_share, largest_payload_bytes);
  return round_up(share, alignment) * ranks;
}

int chunks_at_once(std::int64_t chunk_bytes, bool one_host) {
  const std::int64_t way_bytes = one_host ? 16 << 20 : 128 << 20;
  return static_cast<int>(std::clamp<std::int64_t>(way_bytes / chunk_bytes, 4, 512));
}

}  // namespace motley
