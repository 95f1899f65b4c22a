// One rank's run of one collective over real buffers, without I/O and without a clock: frames in, frames out.
//
// The vector goes through the schedule chunk by chunk, several chunks at a time; a chunk begins once the one `window`
// before it is complete. Frames that come before their turn are held, but only those of the chunks in the window. That
// bounds the memory and cannot block for ever: a rank that is ahead of this one by a whole window has already sent
// everything this rank's first open chunk needs (docs/concepts/collectives.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "motley/comm/collective/collective_schedule.hpp"
#include "motley/comm/collective/operation_progress.hpp"
#include "motley/comm/transport/collective_frame.hpp"

namespace motley {

struct ExecutionBuffers {
  std::span<std::byte> data;              // what steps work on
  std::span<const std::byte> input = {};  // sends read from here where it is not empty
};

class Execution : public OperationProgress {
 public:
  // `frame` gives group, epoch, operation and shape of everything sent and expected; schedule and buffers must outlive
  // the run. The element and the reduction are the shape's.
  void start(const CollectiveSchedule& schedule, const CollectiveFrame& frame, ExecutionBuffers buffers, int window);
  // Every step of every chunk is complete: results stand in the buffer, and everything was given out for sending.
  bool done() const override { return open_first_ == chunks_; }
  const Outgoing* next(int peer) override;
  void sent(int peer) override;
  Answer on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload, Holding holding) override;
  std::span<std::byte> place(int peer, const CollectiveFrame& frame) override;
  // Of the first open chunk.
  std::vector<int> awaited() const override;
  bool needs(int peer) const override;
  std::int64_t held_bytes() const override { return held_bytes_; }
  std::int64_t peak_held_bytes() const override { return peak_held_bytes_; }

 private:
  struct StepState {
    std::uint32_t waits = 0;   // prerequisites that are not complete
    std::uint32_t pieces = 0;  // that have not travelled
    bool complete = false;
  };
  struct Chunk {
    std::vector<StepState> steps;
    std::vector<std::vector<bool>> arrived;  // by step that receives, by piece
    std::uint32_t left = 0;                  // steps
  };
  struct Ready {  // a step whose pieces may be sent
    std::uint32_t chunk = 0;
    std::uint32_t step = 0;
    std::uint32_t piece = 0;
  };
  struct Held {
    int peer = -1;
    CollectiveFrame frame;
    std::vector<std::byte> payload;
  };

  Chunk& chunk(std::uint32_t index) { return open_[index % open_.size()]; }
  void open(std::uint32_t index);
  static void enqueue(std::deque<Ready>& box, Ready step);
  void ready(std::uint32_t chunk, std::uint32_t step);
  void complete(std::uint32_t chunk, std::uint32_t step);
  void settle();
  std::int64_t length_of(std::uint32_t chunk, const SchedulePiece& piece) const;
  std::size_t place_of(std::uint32_t chunk, const SchedulePiece& piece) const;  // in the buffer
  std::optional<std::size_t> piece_of(int peer, const CollectiveFrame& frame) const;
  bool lacks(const Chunk& slot, std::uint32_t chunk, std::uint32_t place) const;
  void apply(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload);

  const CollectiveSchedule* schedule_ = nullptr;
  CollectiveFrame frame_;
  ExecutionBuffers buffers_;
  std::int64_t block_bytes_ = 0;        // of the vector
  std::int64_t chunk_block_bytes_ = 0;  // of a chunk's part of a block
  std::int64_t last_block_bytes_ = 0;   // of the last chunk's
  std::uint32_t chunks_ = 0;
  std::uint32_t open_first_ = 0;           // first chunk that is not complete
  std::uint32_t open_last_ = 0;            // one past the last that has begun
  std::vector<Chunk> open_;                // by chunk modulo the window
  std::vector<std::deque<Ready>> outbox_;  // by peer
  Outgoing outgoing_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> completed_;  // chunk and step, to be followed up
  std::deque<Held> held_;
  std::int64_t held_bytes_ = 0;
  std::int64_t peak_held_bytes_ = 0;
};

}  // namespace motley
