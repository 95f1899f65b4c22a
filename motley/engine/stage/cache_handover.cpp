#include "motley/engine/stage/cache_handover.hpp"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/pinned_pieces.hpp"

namespace motley {
namespace {

using at::Tensor;

// What goes before the blocks of a layer; without any blocks where the layer is not there.
struct LayerHead {
  std::uint64_t epoch = 0;  // since when
  std::int64_t bytes = 0;
};

std::vector<Tensor*> tensors_of(LayerCache& cache) {
  std::vector<Tensor*> tensors;
  for (Tensor* tensor : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales})
    if (tensor->defined()) tensors.push_back(tensor);
  return tensors;
}

// Of a layer whose slots have this number of blocks each; 0: steps name them.
std::vector<std::int64_t> blocks_of(const CacheHandover& handover, std::int64_t slot_blocks) {
  if (slot_blocks == 0) return {handover.blocks.begin(), handover.blocks.end()};
  std::vector<std::int64_t> blocks;
  for (const std::int32_t slot : handover.slots)
    for (std::int64_t block = 0; block < slot_blocks; ++block) blocks.push_back(slot * slot_blocks + block);
  return blocks;
}

std::int64_t bytes_of_blocks(LayerCache& cache, std::int64_t blocks) {
  std::int64_t bytes = 0;
  for (const Tensor* tensor : tensors_of(cache))
    bytes += static_cast<std::int64_t>(tensor->nbytes()) / tensor->size(0) * blocks;
  return bytes;
}

// The device gathers as many blocks as a piece has room for, and the other end gets those before them meanwhile. Each
// such part is a message, whatever the devices.
void send(StageModel::RetainedLayer* kept, const Tensor& blocks, int to, std::uint64_t epoch, WorkerGroup& workers,
          PinnedPieces& pieces) {
  LayerHead head{epoch, 0};
  if (kept != nullptr && kept->epoch < epoch && blocks.size(0) > 0 &&
      kept->cache.keys.size(0) > blocks.max().item<std::int64_t>())
    head = {kept->epoch, bytes_of_blocks(kept->cache, blocks.size(0))};
  workers.send(std::as_bytes(std::span(&head, 1)), to);
  if (head.bytes == 0) return;
  for (const Tensor* tensor : tensors_of(kept->cache)) {
    const std::vector<Tensor> parts = blocks.to(tensor->device()).split(rows_of_piece(*tensor));
    pieces.to_host(
        std::ssize(parts),
        [&](std::int64_t i) { return tensor->index_select(0, parts[static_cast<std::size_t>(i)]).contiguous(); },
        [&](const Tensor& host) { workers.send(bytes_of(host), to); });
  }
}

void receive(StageModel::RetainedLayer& kept, const CacheMove& move, const Tensor& blocks, WorkerGroup& workers,
             PinnedPieces& pieces) {
  LayerHead head;
  workers.receive(std::as_writable_bytes(std::span(&head, 1)), move.from);
  if (head.bytes == 0) return;
  if (const std::int64_t expected = bytes_of_blocks(kept.cache, blocks.size(0)); head.bytes != expected)
    throw Error(ErrorCode::peer, fmt::format("layer {} is handed over in {} bytes, and {} are expected", move.layer,
                                             head.bytes, expected));
  for (Tensor* tensor : tensors_of(kept.cache))
    for (const Tensor& part : blocks.to(tensor->device()).split(rows_of_piece(*tensor))) {
      std::vector<std::int64_t> sizes = tensor->sizes().vec();
      sizes[0] = part.size(0);
      const Tensor values = at::empty(sizes, tensor->options());
      pieces.to_device(values, [&](const Tensor& host) { workers.receive(bytes_of(host), move.from); });
      tensor->index_copy_(0, part, values);
    }
  kept.epoch = head.epoch;
}

}  // namespace

void hand_over(const CacheHandover& handover, int rank, std::uint64_t epoch, WorkerGroup& workers, StageModel& model,
               const ComputeDevice& device) {
  if (handover.blocks.empty()) return;
  const c10::InferenceMode guard;
  PinnedPieces pieces(device);
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::peer, "the launch hands over keys and values: " + what);
  };
  if (std::ranges::min(handover.blocks) < 0) refuse("of a block below 0");
  if (!handover.slots.empty() && std::ranges::min(handover.slots) < 0) refuse("of a slot below 0");
  for (const CacheMove& move : handover.moves) {
    if (move.from < 0 || move.from >= workers.size() || move.to < 0 || move.to >= workers.size() ||
        move.from == move.to)
      refuse(fmt::format("from worker {} to worker {} of {}", move.from, move.to, workers.size()));
    StageModel::RetainedLayer* kept = model.retained_layer(move.layer);
    if (kept != nullptr && !kept->cache.keys.defined())
      refuse(fmt::format("layer {} has states in place of them", move.layer));
    const std::vector<std::int64_t> numbers = blocks_of(handover, kept != nullptr ? kept->slot_blocks : 0);
    const Tensor blocks = at::tensor(numbers, at::kLong);
    if (move.from == rank) send(kept, blocks, move.to, epoch, workers, pieces);
    if (move.to != rank) continue;
    if (kept == nullptr) refuse(fmt::format("layer {} is not this worker's", move.layer));
    if (!numbers.empty() && std::ranges::max(numbers) >= kept->cache.keys.size(0))
      refuse(fmt::format("of block {}, where there are {}", std::ranges::max(numbers), kept->cache.keys.size(0)));
    receive(*kept, move, blocks, workers, pieces);
  }
}

}  // namespace motley
