// One rank's run of one collective over real buffers, without I/O and without a clock: frames in, frames out.
//
// The vector goes through the schedule chunk by chunk, several chunks at a time; a chunk begins once the one `window`
// before it is complete. Frames that come before their turn are held, but only those of the chunks in the window. That
// bounds the memory and cannot block for ever: whoever is ahead of this rank by a whole window has already sent
// everything this rank's first open chunk needs (docs/collectives.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/comm/collective_element.hpp"
#include "motley/comm/collective_frame.hpp"
#include "motley/comm/collective_schedule.hpp"

namespace motley {

struct ExecutionBuffers {
  std::span<std::byte> data;              // what steps work on
  std::span<const std::byte> input = {};  // sends read from here where it is not empty
};

class Execution {
 public:
  struct Outgoing {
    CollectiveFrame frame;
    std::span<const std::byte> payload;
  };
  struct Refusal {
    int peer = -1;
    std::string cause;
  };
  enum class Answer {
    taken,    // the payload has been used, or copied
    later,    // offer it again when something else has changed
    refused,  // see refusal(); the operation cannot succeed
  };
  enum class Holding { no, yes };  // whether frames before their turn may be copied

  // `frame` gives group, epoch, operation and shape of everything sent and expected; schedule and buffers must outlive
  // the run. The element and the reduction are the shape's.
  void start(const CollectiveSchedule& schedule, const CollectiveFrame& frame, ExecutionBuffers buffers, int window);
  // Every step of every chunk is complete: results stand in the buffer, and everything was given out for sending.
  bool done() const { return open_first_ == chunks_; }

  // The next frame for this peer, or nothing now. It stays the next until sent(peer).
  const Outgoing* next(int peer);
  void sent(int peer);

  // A data frame from this peer.
  Answer on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload, Holding holding);
  // Where the payload may be written directly, since it is wanted as it is and now; empty otherwise.
  std::span<std::byte> place(int peer, const CollectiveFrame& frame);

  const std::optional<Refusal>& refusal() const { return refusal_; }
  // Peers whose frames the first open chunk still needs.
  std::vector<int> awaited() const;
  // Frames to or from this peer are still missing.
  bool needs(int peer) const;
  std::int64_t held_bytes() const { return held_bytes_; }
  std::int64_t peak_held_bytes() const { return peak_held_bytes_; }

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
  std::int64_t piece_length(std::uint32_t chunk, const ScheduleStep& step, std::size_t piece) const;
  std::size_t piece_offset(std::uint32_t chunk, const ScheduleStep& step, std::size_t piece) const;
  std::optional<std::size_t> piece_of(int peer, const CollectiveFrame& frame) const;
  bool lacks(const Chunk& slot, std::uint32_t chunk, std::uint32_t place) const;
  void apply(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload);
  Answer refuse(int peer, std::string cause);

  const CollectiveSchedule* schedule_ = nullptr;
  CollectiveFrame frame_;
  ExecutionBuffers buffers_;
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
  std::optional<Refusal> refusal_;
};

}  // namespace motley
