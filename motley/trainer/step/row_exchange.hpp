// Rows of activations, and of their gradients, on their way between the workers of a replica. Sending does not wait:
// a thread for each receiver does it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "motley/engine/device/compute_device.hpp"
#include "motley/trainer/layout/connections.hpp"

namespace motley {

class RowOutbox;

class RowExchange {
 public:
  // The connections outlive it.
  RowExchange(const TrainConnections& connections, int worker, const ComputeDevice& device);
  ~RowExchange();

  // `rows` [R, hidden] are this worker's, from row `first` of the micro-batch on; parts of the
  // regions that are for this worker itself wait here for receive(). Throws what sending threw before.
  void send(const std::vector<RowRegion>& regions, const at::Tensor& rows, std::int64_t first);
  // Rows [first, first + into.size(0)) of the micro-batch, those of receiving group `dp`, whose ranks share them out.
  void receive(const std::vector<RowRegion>& regions, std::int64_t dp, WorkerGroup* ranks, int rank, at::Tensor into,
               std::int64_t first);

 private:
  const TrainConnections& connections_;
  int worker_;
  const ComputeDevice& device_;
  at::Tensor buffer_;  // of the host: rows that arrive
  std::map<int, std::unique_ptr<RowOutbox>> outboxes_;
  std::vector<std::pair<RowTransfer, at::Tensor>> own_;
};

}  // namespace motley
