#include "motley/engine/weights/streamed_blocks.hpp"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/pinned_pieces.hpp"
#include "motley/engine/spill/stream_copy.hpp"

namespace motley {
namespace {

constexpr std::int64_t line_bytes = 64;

std::int64_t block_bytes(const StageSpec& spec, const Shard& shard, std::int64_t layer) {
  return motley::block_bytes(spec.arch, layer, shard, spec.weight_type);
}

}  // namespace

StreamedBlocks::StreamedBlocks(WeightLoader& loader, const StageSpec& spec, const ComputeDevice& device)
    : first_(spec.layers.first),
      rank_(spec.rank),
      device_(device),
      apart_(device.has_own_memory()),
      homes_(static_cast<std::size_t>(spec.layers.size())) {
  std::int64_t host_bytes = 0, disk_bytes = 0, largest = 0;
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer) {
    Home& home = this->home(layer);
    home.tier = spec.offload->weights.at(static_cast<std::size_t>(layer - first_));
    if (home.tier == Tier::device) continue;
    if (comes_ahead(home.tier)) ahead_.push_back(layer);
    const std::int64_t bytes = block_bytes(spec, loader.shard(), layer);
    home.bytes = spill_aligned(bytes);
    buffers_bytes_ = std::max(buffers_bytes_, 2 * bytes);
    std::int64_t& end = home.tier == Tier::host ? host_bytes : disk_bytes;
    home.offset = end;
    end += home.bytes;
    largest = std::max(largest, home.bytes);
  }
  if (largest > 0) allocate_buffers(largest);
  if (host_bytes > 0) host_ = std::make_shared<PinnedBuffer>("weights in the host's memory", host_bytes, device_);
  if (disk_bytes > 0) disk_ = std::make_shared<SpillFile>("streamed weights", disk_bytes);
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer) settle(loader, layer);
  if (!ahead_.empty()) transfers_ = std::make_unique<Transfers>(copying_threads);
}

// Other threads fill them, whose copies do not wait for what this thread's stream still does with the same memory: by
// then settle() has waited for it.
void StreamedBlocks::allocate_buffers(std::int64_t largest) {
  for (const int buffer : {0, 1})
    if (apart_)
      device_buffers_[buffer] = device_.empty({largest}, at::kByte);
    else
      buffers_[buffer] = std::make_shared<SpillBuffer>("the buffers of streamed weights", largest);
}

std::byte* StreamedBlocks::buffer_begin(int buffer) const {
  return apart_ ? static_cast<std::byte*>(device_buffers_[buffer].mutable_data_ptr())
                : buffers_[buffer]->bytes().data();
}

// No more than one block is in memory twice.
void StreamedBlocks::settle(WeightLoader& loader, std::int64_t layer) {
  Home& home = this->home(layer);
  if (home.tier == Tier::device) {
    const std::int64_t before = loader.bytes();
    resident_.emplace(layer, loader.block(layer));
    resident_bytes_ += loader.bytes() - before;
    return;
  }
  std::map<std::string, Placed> placed;
  std::unique_ptr<SpillBuffer> on_its_way;  // to the disk; where the first buffer is not the host's
  if (home.tier == Tier::disk && apart_)
    on_its_way = std::make_unique<SpillBuffer>("a block on its way to the disk", home.bytes);
  const std::span<std::byte> bytes = home.tier == Tier::host
                                         ? host_->bytes().subspan(home.offset, home.bytes)
                                         : (on_its_way ? *on_its_way : *buffers_[0]).bytes().first(home.bytes);
  std::int64_t end = 0;
  for (auto& [role, matrix] : loader.take_block(layer)) {
    const at::Tensor values = std::exchange(matrix.values, {}).contiguous();
    const auto size = static_cast<std::int64_t>(values.nbytes());
    MOTLEY_CHECK(!matrix.scaled() && end + size <= home.bytes);
    at::from_blob(bytes.data() + end, values.sizes(), at::TensorOptions(values.scalar_type())).copy_(values);
    placed.emplace(role, Placed{matrix, values.sizes().vec(), values.scalar_type(), end});
    end += round_up(size, line_bytes);
  }
  ::malloc_trim(0);  // the allocator keeps what a block took for the next one, in addition to what the plan counts
  if (home.tier == Tier::disk) disk_->write(home.offset, bytes);
  for (const int buffer : {0, 1}) home.in_buffer[buffer] = view(placed, buffer, loader.first_expert(layer));
}

BlockWeights StreamedBlocks::view(const std::map<std::string, Placed>& tensors, int buffer,
                                  std::int64_t first_expert) const {
  std::map<std::string, WeightMatrix> matrices;
  for (const auto& [role, placed] : tensors) {
    WeightMatrix matrix = placed.matrix;
    matrix.values = at::from_blob(buffer_begin(buffer) + placed.offset, placed.sizes, device_.options(placed.type));
    matrices.emplace(role, std::move(matrix));
  }
  return block_of(matrices, rank_, first_expert);
}

const BlockWeights& StreamedBlocks::block(std::int64_t layer) {
  const Home& home = this->home(layer);
  if (in_use_) device_.wait_for_thread();  // which still reads from that buffer
  in_use_.reset();
  const bool copied = home.tier == Tier::host && !apart_;
  // A pass that was broken off: the next one begins elsewhere than was expected.
  const bool unexpected = !reads_.empty() && reads_.front().layer != next_ahead(layer);
  if (unexpected || (copied && !free_buffer())) drop_reads();
  if (comes_ahead(home.tier)) {
    if (reads_.empty()) read(layer, 0);
    in_use_ = reads_.front().buffer;
    const Transfers::Handle arrival = reads_.front().arrival;
    reads_.pop_front();
    read_ahead(layer);
    transfers_->wait(arrival);
    return home.in_buffer[*in_use_];
  }
  if (copied) in_use_ = free_buffer();
  if (!ahead_.empty()) read_ahead(layer);
  if (!copied) return resident_.at(layer);
  copy(home, *in_use_);
  return home.in_buffer[*in_use_];
}

// This layer or the first one behind it, in this pass or in the next.
std::int64_t StreamedBlocks::next_ahead(std::int64_t layer) const {
  const auto next = std::ranges::lower_bound(ahead_, layer);
  return next == ahead_.end() ? ahead_.front() : *next;
}

bool StreamedBlocks::host_block_between(std::int64_t layer, std::int64_t later) const {
  const auto count = std::ssize(homes_);
  const auto next = [&](std::int64_t i) { return (i + 1) % count; };
  for (std::int64_t i = next(layer - first_); i != later - first_; i = next(i))
    if (homes_[static_cast<std::size_t>(i)].tier == Tier::host && !apart_) return true;
  return false;
}

std::optional<int> StreamedBlocks::free_buffer() const {
  for (const int buffer : {0, 1})
    if (in_use_ != buffer && std::ranges::find(reads_, buffer, &Read::buffer) == reads_.end()) return buffer;
  return std::nullopt;
}

void StreamedBlocks::copy(const Home& home, int buffer) {
  const std::span<const std::byte> from = host_->bytes().subspan(static_cast<std::size_t>(home.offset));
  const std::span<std::byte> to = buffers_[buffer]->bytes();
  const std::int64_t pieces = ceil_div(home.bytes, copied_piece_bytes);
  at::parallel_for(0, pieces, 1, [&](std::int64_t first, std::int64_t last) {
    const auto begin = static_cast<std::size_t>(first * copied_piece_bytes);
    const auto end = static_cast<std::size_t>(std::min(last * copied_piece_bytes, home.bytes));
    stream_copy(to.subspan(begin), from.subspan(begin, end - begin));
  });
}

// What brings a piece of a block from `begin` on into `buffer`, by whichever thread.
std::function<void()> StreamedBlocks::piece(const Home& home, std::int64_t begin, int buffer) const {
  const auto size = static_cast<std::size_t>(std::min(copied_piece_bytes, home.bytes - begin));
  const auto from = static_cast<std::size_t>(home.offset + begin);
  if (!apart_)
    return [to = buffers_[buffer], disk = disk_, begin, size, from] {
      disk->read(static_cast<std::int64_t>(from), to->bytes().subspan(static_cast<std::size_t>(begin), size));
    };
  const at::Tensor to = device_buffers_[buffer].narrow(0, begin, static_cast<std::int64_t>(size));
  if (home.tier == Tier::host)
    return [to, host = host_, size, from] { copy_to_device(to, host->bytes().subspan(from, size)); };
  return [to, disk = disk_, &device = device_, from] {
    const c10::InferenceMode guard;
    thread_local PinnedPieces passing(device, 1);
    passing.to_device(to,
                      [&](const at::Tensor& piece) { disk->read(static_cast<std::int64_t>(from), bytes_of(piece)); });
    passing.wait();
  };
}

// Into `buffer`, which nothing else uses.
void StreamedBlocks::read(std::int64_t layer, int buffer) {
  const Home& home = this->home(layer);
  std::vector<std::function<void()>> pieces;
  for (std::int64_t begin = 0; begin < home.bytes; begin += copied_piece_bytes)
    pieces.push_back(piece(home, begin, buffer));
  reads_.push_back({layer, buffer, transfers_->start(fmt::format("weights of layer {}", layer), std::move(pieces))});
}

// Fills the buffers that are free with what is read next, behind block `layer`. One is left to a block in the host's
// memory whose turn comes before that of all that is read: it needs a buffer then.
void StreamedBlocks::read_ahead(std::int64_t layer) {
  for (;;) {
    const std::optional<int> buffer = free_buffer();
    if (!buffer || (!reads_.empty() && host_block_between(layer, reads_.front().layer))) return;
    const std::int64_t after = reads_.empty() ? layer : reads_.back().layer;
    read(next_ahead(after + 1), *buffer);
  }
}

void StreamedBlocks::drop_reads() {
  for (const Read& read : reads_) transfers_->wait(read.arrival);
  reads_.clear();
}

}  // namespace motley
