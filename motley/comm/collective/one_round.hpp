// The smallest vectors: everybody sends its own to everybody, in one frame each.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "motley/comm/collective/operation_progress.hpp"

namespace motley {

class OneRound : public OperationProgress {
 public:
  // `own` goes to every other rank; rank r's comes to `slots` at r times its size. Both must outlive the run.
  void start(const CollectiveFrame& frame, int rank, int ranks, std::span<const std::byte> own,
             std::span<std::byte> slots);

  bool done() const override { return left_ == 0; }
  const Outgoing* next(int peer) override;
  void sent(int peer) override;
  Answer on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload, Holding holding) override;
  std::span<std::byte> place(int peer, const CollectiveFrame& frame) override;
  std::vector<int> awaited() const override;
  bool needs(int peer) const override;

 private:
  struct Peer {
    bool sent = false, arrived = false;
  };
  std::span<std::byte> slot(int peer) const;
  bool fits(const CollectiveFrame& frame) const;

  Outgoing outgoing_;
  std::span<std::byte> slots_;
  std::vector<Peer> peers_;
  int left_ = 0;  // frames to send and to receive
};

}  // namespace motley
