// Hidden states on their way from one stage to the next, in the type that they are sent in.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "motley/base/dtype.hpp"
#include "motley/engine/device/compute_device.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

// One direction of a worker's crossings; keeps the buffer of packed rows. send_crossing() and receive_crossing() say
// who sends what to whom. Types are those of check_activation_type().
class CrossingSender {
 public:
  explicit CrossingSender(const ComputeDevice& device) : device_(device) {}
  // `hidden`: [T, H] of the device, of any type.
  void send(WorkerGroup& workers, const at::Tensor& hidden, DType type, int rank, int senders,
            std::span<const int> receivers);

 private:
  const ComputeDevice& device_;
  std::vector<std::byte> packed_;
  at::Tensor host_;  // bytes: rows on their way
};

class CrossingReceiver {
 public:
  // Into `rows`: [T, H] of the host, contiguous, in the type that this stage computes in. Throws a peer error for rows
  // of another size or that are malformed. `received` is called as receive_crossing() does.
  void receive(WorkerGroup& workers, const at::Tensor& rows, DType type, int sender, WorkerGroup* stage,
               const std::function<void()>& received = {});

 private:
  std::vector<std::byte> packed_;
};

// Rows of values [T, H] in the host's memory as they are sent, and back.
void pack_int8(const at::Tensor& rows, std::vector<std::byte>& packed);
void unpack_int8(std::span<const std::byte> packed, const at::Tensor& rows);

}  // namespace motley
