#include "motley/engine/weights/streamed_caches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

// One block of each tensor that a cache has.
std::vector<std::span<std::byte>> parts_of_block(const LayerCache& cache, std::int64_t block) {
  std::vector<std::span<std::byte>> parts;
  for (const at::Tensor& tensor : {cache.keys, cache.values, cache.key_scales, cache.value_scales})
    if (tensor.defined()) {
      const auto bytes = static_cast<std::size_t>(tensor.stride(0) * tensor.element_size());
      auto* begin = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
      parts.emplace_back(begin + static_cast<std::size_t>(block) * bytes, bytes);
    }
  return parts;
}

// Aligned, of each thread: records go through it, since blocks are not.
std::span<std::byte> relay(std::int64_t bytes) {
  thread_local std::unique_ptr<SpillBuffer> buffer;
  if (!buffer || std::ssize(buffer->bytes()) < bytes)
    buffer = std::make_unique<SpillBuffer>("moving keys and values", bytes);
  return buffer->bytes().first(static_cast<std::size_t>(bytes));
}

// Blocks of a buffer, the first and how many, whose records lie side by side on the disk.
struct Run {
  std::size_t first = 0, count = 0;
};

// Of the blocks [first, last), those that are `moved`. A sequence takes most of its blocks one after the other.
std::vector<Run> runs_of(const std::vector<std::int32_t>& ids, const std::vector<bool>& moved, std::size_t first,
                         std::size_t last, std::size_t longest) {
  std::vector<Run> runs;
  for (std::size_t i = first; i < std::min(last, ids.size()); ++i) {
    if (!moved[i]) continue;
    const bool joins = !runs.empty() && runs.back().first + runs.back().count == i && ids[i] == ids[i - 1] + 1;
    if (joins && runs.back().count < longest)
      ++runs.back().count;
    else
      runs.push_back({i, 1});
  }
  return runs;
}

}  // namespace

StreamedCaches::StreamedCaches(std::vector<std::int64_t> layers, DType type, const CacheShape& shape,
                               std::int64_t buffer_blocks, const ComputeDevice& device)
    : layers_(std::move(layers)), shape_(shape), buffer_blocks_(buffer_blocks) {
  for (const std::int64_t layer : layers_) places_.emplace(layer, std::ssize(places_));
  CacheShape of_buffer = shape;
  of_buffer.blocks = buffer_blocks;
  for (Buffer& buffer : buffers_) buffer.cache = empty_cache(type, of_buffer, device);
  for (const auto& part : parts_of_block(buffers_[0].cache, 0)) record_bytes_ += std::ssize(part);
  record_bytes_ = spill_aligned(record_bytes_);
  file_ = std::make_shared<SpillFile>("keys and values", std::ssize(layers_) * shape.blocks * record_bytes_);
  transfers_ = std::make_unique<Transfers>(copying_threads);
}

std::int64_t StreamedCaches::buffers_bytes() const {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : buffers_)
    for (const at::Tensor& tensor :
         {buffer.cache.keys, buffer.cache.values, buffer.cache.key_scales, buffer.cache.value_scales})
      if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

void StreamedCaches::begin_step(const std::vector<std::vector<SequenceRows>>& batches) {
  for (Buffer& buffer : buffers_)
    if (buffer.transfer) transfers_->wait(std::exchange(buffer.transfer, {}));
  batches_.clear();
  for (const std::vector<SequenceRows>& sequences : batches) {
    auto batch = std::make_shared<Batch>();
    for (const SequenceRows& rows : sequences) {
      const std::int64_t end = rows.position + rows.count, block = shape_.block_tokens;
      // What the sequence does not reach yet is not moved.
      for (std::int64_t i = 0; i * block < end; ++i) {
        batch->local.push_back(static_cast<std::int32_t>(batch->ids.size()));
        batch->ids.push_back(rows.blocks[static_cast<std::size_t>(i)]);
        batch->filled.push_back(i * block < rows.position);
        batch->written.push_back((i + 1) * block > rows.position);
      }
    }
    MOTLEY_CHECK(std::ssize(batch->ids) <= buffer_blocks_);
    std::size_t first = 0;
    for (const SequenceRows& rows : sequences) {
      const auto count = static_cast<std::size_t>(ceil_div(rows.position + rows.count, shape_.block_tokens));
      batch->sequences.push_back(
          {rows.first_row, rows.count, rows.position, std::span(batch->local).subspan(first, count), rows.slot});
      first += count;
    }
    if (!batches_.empty() && !sequences.empty()) {
      const SequenceRows &last = batches[batches_.size() - 1].back(), &next = sequences.front();
      batch->continues = last.blocks.data() == next.blocks.data();
    }
    batches_.push_back(std::move(batch));
  }
  pass_ = 0;
  if (passes() > 0) move({}, 0);
  if (loads_early(1)) move({}, 1);
}

StreamedCaches::Pass StreamedCaches::begin(std::int64_t layer, std::size_t batch) {
  MOTLEY_CHECK(pass_ < passes() && layer_of(pass_) == layer && batch_of(pass_) == batch);
  Buffer& buffer = buffers_[pass_ % 2];
  if (pass_ > 0 && !loads_early(pass_)) {  // it needs what the pass before has written
    for (Buffer& other : buffers_)
      if (other.transfer) transfers_->wait(other.transfer);
    move({}, pass_);
  }
  transfers_->wait(buffer.transfer);
  return {buffer.cache, batches_[batch]->sequences};
}

void StreamedCaches::end() {
  const std::size_t next = pass_ + 2;
  move(pass_, loads_early(next) ? std::optional(next) : std::nullopt);
  ++pass_;
}

// A piece has a part of the buffer's blocks, so that what it loads comes after what it has stored there. A read waits
// in the disk's queue behind pieces of weights, however small it is: records side by side are one.
void StreamedCaches::move(std::optional<std::size_t> stored, std::optional<std::size_t> loaded) {
  constexpr std::int64_t most_run_bytes = 256 << 10;
  Buffer& buffer = buffers_[stored.value_or(loaded.value_or(0)) % 2];
  const auto batch = [&](std::optional<std::size_t> pass) {
    return pass ? batches_[batch_of(*pass)] : std::make_shared<const Batch>();
  };
  const auto place = [&](std::optional<std::size_t> pass) {
    return pass ? places_.at(layer_of(*pass)) * shape_.blocks * record_bytes_ : 0;
  };
  const std::shared_ptr<const Batch> from = batch(stored), to = batch(loaded);
  const std::size_t blocks = std::max(from->ids.size(), to->ids.size());
  const std::size_t part = ceil_div(blocks, copying_threads);
  const auto longest = static_cast<std::size_t>(std::max<std::int64_t>(1, most_run_bytes / record_bytes_));
  std::vector<std::function<void()>> pieces;
  for (std::size_t begin = 0; begin < blocks; begin += part)
    pieces.emplace_back([cache = buffer.cache, file = file_, bytes = record_bytes_, begin, end = begin + part, longest,
                         from, from_place = place(stored), to, to_place = place(loaded)] {
      const auto record_bytes = static_cast<std::size_t>(bytes);
      const std::span<std::byte> records = relay(bytes * static_cast<std::int64_t>(longest));
      for (const Run& run : runs_of(from->ids, from->written, begin, end, longest)) {
        for (std::size_t i = 0; i < run.count; ++i) {
          std::byte* next = records.data() + i * record_bytes;
          for (const auto& part_of : parts_of_block(cache, static_cast<std::int64_t>(run.first + i)))
            next = std::ranges::copy(part_of, next).out;
        }
        file->write(from_place + from->ids[run.first] * bytes, records.first(run.count * record_bytes));
      }
      for (const Run& run : runs_of(to->ids, to->filled, begin, end, longest)) {
        file->read(to_place + to->ids[run.first] * bytes, records.first(run.count * record_bytes));
        for (std::size_t i = 0; i < run.count; ++i) {
          const std::byte* next = records.data() + i * record_bytes;
          for (const auto& part_of : parts_of_block(cache, static_cast<std::int64_t>(run.first + i))) {
            std::copy_n(next, part_of.size(), part_of.data());
            next += part_of.size();
          }
        }
      }
    });
  const std::int64_t layer = layer_of(stored.value_or(loaded.value_or(0)));
  buffer.transfer = transfers_->start(fmt::format("keys and values of layer {}", layer), std::move(pieces));
}

}  // namespace motley
