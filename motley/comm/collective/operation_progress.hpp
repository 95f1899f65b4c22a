// What of one operation has travelled, as the communicator that drives it asks: without I/O and without a clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/comm/transport/collective_frame.hpp"

namespace motley {

class OperationProgress {
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

  virtual ~OperationProgress() = default;

  // Results stand in the buffer, and everything was given out for sending.
  virtual bool done() const = 0;
  // The next frame for this peer, or nothing now. It stays the next until sent(peer).
  virtual const Outgoing* next(int peer) = 0;
  virtual void sent(int peer) = 0;
  // A data frame from this peer.
  virtual Answer on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload,
                          Holding holding) = 0;
  // Where the payload may be written directly, since it is wanted as it is and now; empty otherwise.
  virtual std::span<std::byte> place(int peer, const CollectiveFrame& frame) = 0;
  // Peers whose frames are waited for.
  virtual std::vector<int> awaited() const = 0;
  // Frames to or from this peer are still missing.
  virtual bool needs(int peer) const = 0;
  virtual std::int64_t held_bytes() const { return 0; }
  virtual std::int64_t peak_held_bytes() const { return 0; }

  const std::optional<Refusal>& refusal() const { return refusal_; }

 protected:
  Answer refuse(int peer, std::string cause);
  // Of a frame of an operation of another shape than this rank's.
  Answer refuse_shape(int peer, const CollectiveFrame& frame, const OperationShape& own);
  Answer refuse_stranger(int peer, const CollectiveFrame& frame);

  std::optional<Refusal> refusal_;
};

}  // namespace motley
