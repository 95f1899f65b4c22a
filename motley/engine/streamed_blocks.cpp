#include "motley/engine/streamed_blocks.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::int64_t line_bytes = 64;

std::int64_t block_bytes(const StageSpec& spec, const Shard& shard, std::int64_t layer) {
  return weight_bytes(spec.arch, {1, false, false, layer}, shard, spec.weight_type);
}

}  // namespace

StreamedBlocks::StreamedBlocks(WeightLoader& loader, const StageSpec& spec)
    : first_(spec.layers.first), homes_(static_cast<std::size_t>(spec.layers.size())) {
  std::int64_t host_bytes = 0, disk_bytes = 0, largest = 0;
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer) {
    Home& home = this->home(layer);
    home.tier = spec.offload->weights.at(static_cast<std::size_t>(layer - first_));
    if (home.tier == Tier::device) continue;
    streamed_.push_back(layer);
    const std::int64_t bytes = block_bytes(spec, loader.shard(), layer);
    home.bytes = spill_aligned(bytes);
    buffers_bytes_ = std::max(buffers_bytes_, 2 * bytes);
    std::int64_t& end = home.tier == Tier::host ? host_bytes : disk_bytes;
    home.offset = end;
    end += home.bytes;
    largest = std::max(largest, home.bytes);
  }
  if (!streamed_.empty())
    for (auto& buffer : buffers_) buffer = std::make_shared<SpillBuffer>("the buffers of streamed weights", largest);
  if (host_bytes > 0) host_ = std::make_shared<SpillBuffer>("weights in the host's memory", host_bytes);
  if (disk_bytes > 0) disk_ = std::make_shared<SpillFile>("streamed weights", disk_bytes);
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer) settle(loader, layer);
  if (!streamed_.empty()) transfers_ = std::make_unique<Transfers>(copying_threads);
}

// By way of the first buffer, so that no more than one block is in memory twice.
void StreamedBlocks::settle(WeightLoader& loader, std::int64_t layer) {
  Home& home = this->home(layer);
  if (home.tier == Tier::device) {
    const std::int64_t before = loader.bytes();
    resident_.emplace(layer, loader.block(layer));
    resident_bytes_ += loader.bytes() - before;
    return;
  }
  std::map<std::string, Placed> placed;
  const std::span<std::byte> bytes = home.tier == Tier::host ? host_->bytes().subspan(home.offset, home.bytes)
                                                             : buffers_[0]->bytes().first(home.bytes);
  std::int64_t end = 0;
  for (auto& [role, matrix] : loader.take_block(layer)) {
    const at::Tensor values = std::exchange(matrix.values, {}).contiguous();
    const auto size = static_cast<std::int64_t>(values.nbytes());
    MOTLEY_CHECK(!matrix.scaled() && end + size <= home.bytes);
    std::memcpy(bytes.data() + end, values.const_data_ptr(), values.nbytes());
    placed.emplace(role, Placed{matrix, values.sizes().vec(), values.scalar_type(), end});
    end += (size + line_bytes - 1) / line_bytes * line_bytes;
  }
  ::malloc_trim(0);  // the allocator keeps what a block took for the next one, beside what the plan counts
  if (home.tier == Tier::disk) disk_->write(home.offset, bytes);
  for (const int buffer : {0, 1}) home.in_buffer[buffer] = view(placed, buffer);
}

BlockWeights StreamedBlocks::view(const std::map<std::string, Placed>& tensors, int buffer) const {
  std::map<std::string, WeightMatrix> matrices;
  for (const auto& [role, placed] : tensors) {
    WeightMatrix matrix = placed.matrix;
    matrix.values = at::from_blob(buffers_[buffer]->bytes().data() + placed.offset, placed.sizes, placed.type);
    matrices.emplace(role, std::move(matrix));
  }
  return block_of(matrices);
}

const BlockWeights& StreamedBlocks::block(std::int64_t layer) {
  if (front_in_use_) staged_.pop_front();
  front_in_use_ = home(layer).tier != Tier::device;
  // A pass that was broken off: the next one begins elsewhere than was expected.
  if (front_in_use_ && !staged_.empty() && staged_.front().layer != layer) {
    for (const Staged& staged : staged_) transfers_->wait(staged.arrival);
    staged_.clear();
  }
  if (front_in_use_ && staged_.empty()) stream(layer, 0);
  if (!streamed_.empty()) stream_ahead(layer);
  if (!front_in_use_) return resident_.at(layer);
  transfers_->wait(staged_.front().arrival);
  return home(layer).in_buffer[staged_.front().buffer];
}

// Into `buffer`, which nothing else uses.
void StreamedBlocks::stream(std::int64_t layer, int buffer) {
  const Home& home = this->home(layer);
  std::vector<std::function<void()>> pieces;
  for (std::int64_t begin = 0; begin < home.bytes; begin += copied_piece_bytes) {
    const auto size = static_cast<std::size_t>(std::min(copied_piece_bytes, home.bytes - begin));
    pieces.emplace_back(
        [to = buffers_[buffer], host = host_, disk = disk_, tier = home.tier, begin, size, from = home.offset + begin] {
          const std::span<std::byte> target = to->bytes().subspan(static_cast<std::size_t>(begin), size);
          if (tier == Tier::disk)
            disk->read(from, target);
          else
            std::memcpy(target.data(), host->bytes().data() + from, size);
        });
  }
  staged_.push_back({layer, buffer, transfers_->start(fmt::format("weights of layer {}", layer), std::move(pieces))});
}

// Fills the buffers that are free with what is used next, behind block `layer`.
void StreamedBlocks::stream_ahead(std::int64_t layer) {
  while (staged_.size() < 2) {
    const std::int64_t after = staged_.empty() ? layer : staged_.back().layer;
    const auto next = std::ranges::upper_bound(streamed_, after);
    stream(next == streamed_.end() ? streamed_.front() : *next, staged_.empty() ? 0 : 1 - staged_.front().buffer);
  }
}

}  // namespace motley
