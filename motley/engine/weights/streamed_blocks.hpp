// Blocks of which some are homed in the host's memory or on a disk, and brought into the device's ahead of their use.
//
// Passes go through the layers in order and begin again, so what comes next is known: two buffers of the largest such
// block take turns. While the block in one is computed with, the next one from the disk streams into the other; once it
// is done with, its buffer takes the one after that. Where the device is the host's own processors, a block in the
// host's memory is copied when its turn comes: copies during their computing only take cores from it. To a device with
// memory of its own it comes ahead like those from the disk, which pass through pieces of the host's memory.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "motley/engine/device/pinned_buffer.hpp"
#include "motley/engine/spill/spill_file.hpp"
#include "motley/engine/spill/transfers.hpp"
#include "motley/engine/weights/weights.hpp"

namespace motley {

class StreamedBlocks final : public BlockStore {
 public:
  // Loads all blocks to their homes, each laid as the operations want it, so that a pass copies bytes and nothing else.
  StreamedBlocks(WeightLoader& loader, const StageSpec& spec, const ComputeDevice& device);
  const BlockWeights& block(std::int64_t layer) override;
  std::int64_t bytes() const override { return resident_bytes_ + buffers_bytes_; }

 private:
  // Where a tensor lies in the bytes of its block, and what it is but for its values.
  struct Placed {
    WeightMatrix matrix;
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    std::int64_t offset;
  };
  struct Home {
    Tier tier = Tier::device;
    std::int64_t offset = 0, bytes = 0;  // in the tier
    BlockWeights in_buffer[2];
  };
  // A block that came into a buffer, or is on its way there.
  struct Read {
    std::int64_t layer = 0;
    int buffer = 0;
    Transfers::Handle arrival;
  };

  Home& home(std::int64_t layer) { return homes_.at(static_cast<std::size_t>(layer - first_)); }
  bool comes_ahead(Tier tier) const { return tier == Tier::disk || (tier == Tier::host && apart_); }
  void allocate_buffers(std::int64_t largest);
  std::byte* buffer_begin(int buffer) const;
  void settle(WeightLoader& loader, std::int64_t layer);
  BlockWeights view(const std::map<std::string, Placed>& tensors, int buffer, std::int64_t first_expert) const;
  std::int64_t next_ahead(std::int64_t layer) const;
  bool host_block_between(std::int64_t layer, std::int64_t later) const;
  std::optional<int> free_buffer() const;
  void copy(const Home& home, int buffer);
  std::function<void()> piece(const Home& home, std::int64_t begin, int buffer) const;
  void read(std::int64_t layer, int buffer);
  void read_ahead(std::int64_t layer);
  void drop_reads();

  const std::int64_t first_;
  const int rank_;
  const ComputeDevice& device_;
  const bool apart_;         // the device has memory of its own
  std::vector<Home> homes_;  // by layer
  std::map<std::int64_t, BlockWeights> resident_;
  std::vector<std::int64_t> ahead_;  // layers that come ahead of their use, ascending
  std::int64_t resident_bytes_ = 0, buffers_bytes_ = 0;
  std::shared_ptr<const SpillBuffer> buffers_[2];  // of the host's memory; or where it is apart
  at::Tensor device_buffers_[2];                   // bytes of the device's
  std::shared_ptr<const PinnedBuffer> host_;
  std::shared_ptr<const SpillFile> disk_;
  std::deque<Read> reads_;     // in the order of their use
  std::optional<int> in_use_;  // a buffer
  std::unique_ptr<Transfers> transfers_;
};

}  // namespace motley
