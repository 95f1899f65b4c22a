// The way of many bytes between the host and a device with memory of its own: through a few pieces of the host's memory
// that the device reads and writes by itself, in turns, so that it copies one while the host fills or empties another.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/stream_order.hpp"

namespace motley {

// How many rows (of dimension 0) of a tensor like this one a piece has room for, and at least one.
std::int64_t rows_of_piece(const at::Tensor& like);

// Of one thread at a time, whose stream the copies are put on: so what it asks of the device comes in its order, and
// needs no waits of the host. They may go while copies are under way: LibTorch's allocator gives pinned memory to
// no one else before. Where the device computes in the host's memory there are no pieces.
class PinnedPieces {
 public:
  explicit PinnedPieces(const ComputeDevice& device, std::size_t count = 2) : device_(device), pieces_(count) {}

  // `fill` writes the values of `to`, no more than a piece, into a tensor of the host of its shape and type. The copy
  // is asked for when this returns.
  void to_device(const at::Tensor& to, const std::function<void(const at::Tensor& host)>& fill);
  // For each i below `count`: what `make` asks the device for, no more than a piece, is given to `take` in the host's
  // memory. The next one is on its way by then.
  void to_host(std::int64_t count, const std::function<at::Tensor(std::int64_t i)>& make,
               const std::function<void(const at::Tensor& host)>& take);
  // Returns when the device has done with all pieces.
  void wait() const;

 private:
  struct Piece {
    at::Tensor memory;
    StreamMoment used;  // behind its latest copy
  };
  Piece& next();

  const ComputeDevice& device_;
  std::vector<Piece> pieces_;
  std::size_t turn_ = 0;
};

}  // namespace motley
