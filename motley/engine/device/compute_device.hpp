// A device as an object: where tensors are put, how its work is waited for, and what computes there.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace motley {

class MemoryMeter;
class Ops;
class PeerMemory;
class SumKernels;

// There is one object for each device, for as long as the program runs: open_device() (engine/devices.hpp).
class ComputeDevice {
 public:
  explicit ComputeDevice(at::Device place) : place_(place) {}
  virtual ~ComputeDevice() = default;
  ComputeDevice(const ComputeDevice&) = delete;
  ComputeDevice& operator=(const ComputeDevice&) = delete;

  // LibTorch's name of it, by which tensors are put there.
  at::Device place() const { return place_; }
  at::TensorOptions options(at::ScalarType type) const { return at::TensorOptions(type).device(place_); }
  // Values are undefined, and written next.
  virtual at::Tensor empty(at::IntArrayRef shape, at::ScalarType type) const { return at::empty(shape, options(type)); }

  // Whether its memory is another than the host's, so that bytes cross by copies.
  virtual bool has_own_memory() const = 0;
  // What is free of its memory now; nothing where nothing tells.
  virtual std::optional<std::int64_t> free_bytes() const = 0;
  // A tensor of the host with the shape of `like`: `like` itself where the device computes in the host's memory;
  // otherwise a part of `buffer` (bytes, pinned), which is allocated where it is too small.
  virtual at::Tensor host_space(const at::Tensor& like, at::Tensor& buffer) const = 0;
  // The values in the host's memory: `values` itself, or a copy in `buffer` when this returns.
  at::Tensor to_host(const at::Tensor& values, at::Tensor& buffer) const;
  // Counts what tensors take of its memory, from the first call on.
  virtual MemoryMeter& meter() const = 0;
  // From now on the process gives no memory of freed tensors back to the system: what a pass frees the next one takes
  // again, where pages of the host would have to be faulted in and filled with zeros one by one.
  virtual void keep_freed_memory() const {}
  // The device then copies these bytes of the host by itself, until unpin(). False where it cannot: copies are slower.
  virtual bool pin(std::span<std::byte> bytes) const { return (void)bytes, false; }
  virtual void unpin(std::span<std::byte> bytes) const { (void)bytes; }
  // Memory that other processes' devices of the same machine can reach; null where there is none.
  virtual const PeerMemory* peer_memory() const { return nullptr; }
  // By which it adds up with the other ranks of a stage; null where it has none.
  virtual const SumKernels* sum_kernels() const { return nullptr; }

  // Whether it packs rows into 8 bits itself (ops/int8_rows.hpp); else the host does.
  virtual bool packs_int8() const { return false; }
  // `rows` [T, H], contiguous, of fp32 or bf16, into `packed` [T, bytes of a row]: both of the device.
  virtual void pack_int8(const at::Tensor& rows, const at::Tensor& packed) const;

  // Return when all that was asked of the device is done, or all that this thread asked for.
  virtual void synchronize() const = 0;
  virtual void wait_for_thread() const = 0;
  // What kernels are put on: a GPU's stream of this thread (a cudaStream_t); null for the host's processors.
  virtual void* stream() const { return nullptr; }
  // False where its context is broken: whatever is asked of it fails from now on.
  bool lives() const;

  // What products run on: a processor's set of kernels, "cuda", or "aten" (LibTorch's own operations).
  virtual std::string kernels() const = 0;
  // The operations of one stage, which may keep buffers on the device.
  virtual std::shared_ptr<const Ops> make_ops() const = 0;
  // Those that autograd runs through.
  virtual const Ops& differentiable_ops() const = 0;

 private:
  at::Device place_;
};

}  // namespace motley
