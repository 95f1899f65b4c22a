#include "motley/engine/cuda/cuda_device.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "motley/base/error.hpp"
#include "motley/engine/cuda/cuda_library.hpp"
#include "motley/engine/cuda/cuda_ops.hpp"
#include "motley/engine/device/accelerator.hpp"
#include "motley/engine/device/device_errors.hpp"
#include "motley/engine/device/stream_order.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

constexpr const char* library_for_amd = "libtorch_hip.so";

// LibTorch's part for GPUs registers itself with the ATen that is already linked, provided that it was not asked for
// before. The one for AMD's calls its devices cuda, too. Returns the name of what was opened.
const std::string& open_cuda_library() {
  struct Opened {
    std::string name, failures;
  };
  static const Opened library = [] {
    std::string failures;
    for (const char* name : {"libtorch_cuda.so", library_for_amd}) {
      if (::dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return Opened{name, {}};
      const char* cause = ::dlerror();
      failures += fmt::format("{}{}", failures.empty() ? "" : "; ", cause ? cause : name);
    }
    return Opened{{}, failures};
  }();
  if (library.name.empty())
    throw Error(ErrorCode::environment, "cannot open LibTorch's library for GPUs: " + library.failures,
                "install the full `torch` package with its CUDA libraries, or plan for `cpu` devices");
  return library.name;
}

void check_cuda_device(int index, const std::string& name) {
  const int count = count_cuda_devices();
  if (count == 0)
    throw Error(ErrorCode::environment, fmt::format("{}: the GPU's driver is missing or lists no device", name),
                "check that `nvidia-smi` lists a device, or `rocm-smi`");
  if (index >= count)
    throw Error(ErrorCode::environment, fmt::format("{}: this machine has {} CUDA devices", name, count),
                fmt::format("the last one is cuda:{}", count - 1));
}

// With a library of kernels, or by LibTorch's own operations where there is none.
class CudaDevice final : public Accelerator {
 public:
  explicit CudaDevice(int index) : Accelerator(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index))) {
    if (kernels_ == nullptr) return;
    peer_memory_.emplace(*kernels_, *this);
    sums_.emplace(*kernels_, *this);
  }

  std::optional<std::int64_t> free_bytes() const override {
    std::int64_t free = 0, total = 0;
    if (kernels_ == nullptr || kernels_->memory(&free, &total) != 0) return std::nullopt;
    return free;
  }
  bool pin(std::span<std::byte> bytes) const override {
    return kernels_ != nullptr && kernels_->pin(bytes.data(), static_cast<std::int64_t>(bytes.size())) == 0;
  }
  void unpin(std::span<std::byte> bytes) const override { kernels_->unpin(bytes.data()); }
  const PeerMemory* peer_memory() const override { return peer_memory_ ? &*peer_memory_ : nullptr; }
  const SumKernels* sum_kernels() const override { return sums_ ? &*sums_ : nullptr; }
  bool packs_int8() const override { return kernels_ != nullptr; }
  void pack_int8(const at::Tensor& rows, const at::Tensor& packed) const override {
    pack_int8_by(*kernels_, *this, rows, packed);
  }
  std::string kernels() const override { return kernels_ != nullptr ? "cuda" : "aten"; }
  std::shared_ptr<const Ops> make_ops() const override {
    if (kernels_ == nullptr) return lasting(generic_ops());
    return std::make_shared<CudaOps>(*kernels_, *this);
  }
  const Ops& differentiable_ops() const override { return motley::differentiable_ops(); }

 private:
  const cuda::Kernels* const kernels_ = open_cuda_library() == library_for_amd ? nullptr : cuda_kernels();
  std::optional<CudaPeerMemory> peer_memory_;
  std::optional<CudaSums> sums_;
};

}  // namespace

int count_cuda_devices() {
  open_cuda_library();
  try {
    return at::globalContext().hasCUDA() ? at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount()
                                         : 0;
  } catch (const c10::Error& error) {
    throw Error(
        ErrorCode::environment, fmt::format("CUDA cannot be used: {}", error.what_without_backtrace()),
        "`nvidia-smi` must list the device, with a driver that this LibTorch knows; or serve with --backend cpu");
  }
}

const ComputeDevice& open_cuda_device(int index, const std::string& name) {
  static std::mutex mutex;
  static std::map<int, CudaDevice> devices;
  check_cuda_device(index, name);
  const std::lock_guard lock(mutex);
  const CudaDevice& device = devices.try_emplace(index, index).first->second;
  use_own_stream(device);
  return device;
}

std::optional<PeerMemory::Buffer> CudaPeerMemory::allocate(std::int64_t bytes) const {
  Buffer buffer;
  cuda::PeerHandle handle{};
  if (kernels_.peer_allocate(bytes, &buffer.memory, &handle) != 0) return std::nullopt;
  static_assert(sizeof handle == sizeof buffer.handle);
  std::memcpy(buffer.handle.data(), &handle, sizeof handle);
  return buffer;
}

void* CudaPeerMemory::open(const PeerBufferHandle& handle) const {
  cuda::PeerHandle theirs{};
  std::memcpy(&theirs, handle.data(), sizeof theirs);
  void* memory = nullptr;
  return kernels_.peer_open(theirs, &memory) == 0 ? memory : nullptr;
}

void CudaPeerMemory::copy(void* to, const void* from, std::int64_t bytes) const {
  if (const int error = kernels_.peer_copy(to, from, bytes, device_.stream()))
    throw DeviceError(error, fmt::format("{}: CUDA error {} ({}) while copying between GPUs", device_.place().str(),
                                         error, kernels_.error_text(error)));
  device_.wait_for_thread();
}

void* CudaSums::address_of(void* pinned) const {
  void* address = nullptr;
  return kernels_.pinned_address(pinned, &address) == 0 ? address : nullptr;
}

void CudaSums::sum(const SharedSum& task) const {
  static_assert(most_ranks == cuda::most_sum_ranks &&
                counters_bytes == cuda::most_sum_blocks * std::int64_t{2 * sizeof(std::uint32_t)});
  cuda::SumTask all{};
  all.element = task.in_bf16 ? cuda::Element::bf16 : cuda::Element::fp32;
  all.terms = task.terms;
  all.count = task.count;
  all.most_bytes = task.most_bytes;
  all.rank = task.rank;
  all.ranks = static_cast<std::int32_t>(task.segments.size());
  all.blocks = task.blocks;
  all.in_parts = task.in_parts ? 1 : 0;
  std::ranges::copy(task.segments, all.segments);
  all.counters = static_cast<std::uint32_t*>(task.counters);
  all.abort = static_cast<const std::uint32_t*>(task.abort);
  if (const int error = kernels_.sum(all, device_.stream()))
    throw DeviceError(error, fmt::format("{}: CUDA error {} ({}) while adding up with other ranks",
                                         device_.place().str(), error, kernels_.error_text(error)));
}

void pack_int8_by(const cuda::Kernels& kernels, const ComputeDevice& device, const at::Tensor& rows,
                  const at::Tensor& packed) {
  static_assert(cuda::packed_exceptions == Int8Row::most_exceptions && cuda::packed_block == Int8Row::block_values &&
                cuda::most_packed_columns == Int8Row::most_values);
  const Int8Row row{rows.size(1)};
  MOTLEY_CHECK(rows.is_contiguous() && packed.is_contiguous() && packed.numel() == rows.size(0) * row.bytes());
  MOTLEY_CHECK(rows.scalar_type() == at::kFloat || rows.scalar_type() == at::kBFloat16);
  const cuda::PackTask task{.element = rows.scalar_type() == at::kFloat ? cuda::Element::fp32 : cuda::Element::bf16,
                            .values = rows.const_data_ptr(),
                            .rows = rows.size(0),
                            .columns = row.values,
                            .packed = packed.mutable_data_ptr()};
  if (const int error = kernels.pack_int8(task, device.stream()))
    throw DeviceError(error, fmt::format("{}: CUDA error {} ({}) while packing rows", device.place().str(), error,
                                         kernels.error_text(error)));
}

}  // namespace motley
