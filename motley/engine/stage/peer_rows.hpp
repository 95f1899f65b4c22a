// Hidden states from one GPU to another of the same machine, past the host's memory: the receiver's process opens a
// buffer of the sender's. Both agree on it once, when the workers have met; where the buffer cannot be opened, as where
// no GPU of the machine reaches another's memory, rows go through the host.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <set>
#include <utility>

#include "motley/engine/device/peer_memory.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

// Of pairs of ranks, sender and receiver, those of this worker where both can: this one, if it is `able`, and the other
// one. Every worker that belongs to a pair calls it first, also one without a GPU or the library: no worker waits for
// the offer or the answer of a worker that makes none.
std::set<std::pair<int, int>> pairs_that_can(WorkerGroup& workers, const std::set<std::pair<int, int>>& pairs,
                                             bool able);

// To avoid a deadlock, a worker makes all its senders first, then its receivers, and asks then which of them agreed.
class PeerSender {
 public:
  // Offers a buffer of `most_bytes` for the rows of a step, and of the next one with it.
  PeerSender(WorkerGroup& workers, int receiver, const PeerMemory& memory, std::int64_t most_bytes);
  ~PeerSender();
  PeerSender(const PeerSender&) = delete;
  PeerSender& operator=(const PeerSender&) = delete;

  // Waits for the receiver's word.
  bool agrees(WorkerGroup& workers);
  // Contiguous rows of the device. Waits while the receiver is two steps behind.
  void send(WorkerGroup& workers, const at::Tensor& rows);

 private:
  const int receiver_;
  const PeerMemory& memory_;
  const std::int64_t most_bytes_;
  void* buffer_ = nullptr;
  std::uint64_t sent_ = 0;
};

class PeerReceiver {
 public:
  // Waits for the sender's offer, and answers it.
  PeerReceiver(WorkerGroup& workers, int sender, const PeerMemory& memory, std::int64_t most_bytes);
  ~PeerReceiver();
  PeerReceiver(const PeerReceiver&) = delete;
  PeerReceiver& operator=(const PeerReceiver&) = delete;

  bool agrees() const { return buffer_ != nullptr; }
  // Into contiguous rows of the device. Throws a peer error for rows of another size.
  void receive(WorkerGroup& workers, const at::Tensor& rows);

 private:
  const int sender_;
  const PeerMemory& memory_;
  const std::int64_t most_bytes_;
  void* buffer_ = nullptr;  // the sender's
  std::uint64_t received_ = 0;
};

}  // namespace motley
