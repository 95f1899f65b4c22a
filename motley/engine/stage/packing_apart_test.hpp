// For tests without a card: the stand-in device, which packs rows into 8 bits by the kernels' source.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"
#include "motley/engine/device/accelerator.hpp"
#include "motley/engine/device/apart_device_test.hpp"

namespace motley {

// An operator of the processor, which the stand-in runs at its turn in the calling thread's stream.
inline at::Tensor& pack_by_host_kernels(at::Tensor& packed, const at::Tensor& rows) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  pack_int8_by(open_cuda_kernels(MOTLEY_HOST_KERNELS), cpu_device(), rows, packed);
  return packed;
}

class PackingApart : public Accelerator {
 public:
  PackingApart() : Accelerator(apart_device().place()) { register_operator(); }
  std::optional<std::int64_t> free_bytes() const override { return apart_device().free_bytes(); }
  std::string kernels() const override { return apart_device().kernels(); }
  std::shared_ptr<const Ops> make_ops() const override { return apart_device().make_ops(); }
  const Ops& differentiable_ops() const override { return apart_device().differentiable_ops(); }
  bool packs_int8() const override { return true; }
  void pack_int8(const at::Tensor& rows, const at::Tensor& packed) const override {
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("motley_test::pack_int8", "")
                                      .typed<at::Tensor&(at::Tensor&, const at::Tensor&)>();
    at::Tensor into = packed;
    operation.call(into, rows);
  }

 private:
  static void register_operator() {
    static torch::Library library(torch::Library::DEF, "motley_test", std::nullopt, __FILE__, __LINE__);
    static const bool done = [] {
      library.def("pack_int8(Tensor(a!) packed, Tensor rows) -> Tensor(a!)");
      library.impl("pack_int8", torch::dispatch(c10::DispatchKey::CPU, &pack_by_host_kernels));
      return true;
    }();
    (void)done;
  }
};

}  // namespace motley
