#include "motley/engine/backend.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>

#include "motley/engine/cpu_kernels.hpp"
#include "motley/engine/cuda_library.hpp"

namespace motley {
namespace {

// CUDA registers itself with the ATen that is already linked, provided that nobody has asked for it before.
void open_cuda_library() {
  static const std::string failure = [] {
    if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return std::string();
    const char* cause = ::dlerror();
    return std::string(cause ? cause : "unknown cause");
  }();
  if (!failure.empty())
    throw Error(ErrorCode::environment, "cannot open libtorch_cuda.so: " + failure,
                "install the full `torch` package with its CUDA libraries, or plan for `cpu` devices");
}

// The default stream cannot be recorded (Ops::run()), and would make threads wait for each other.
void use_own_stream(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.setDevice(device);
  if (guard.getStream(device) == guard.getDefaultStream(device))
    guard.exchangeStream(guard.getStreamFromGlobalPool(device));
}

}  // namespace

at::Device open_backend(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  constexpr std::string_view prefix = "cuda:";
  int index = -1;
  if (name.starts_with(prefix)) {
    const char* end = name.data() + name.size();
    const auto [rest, failure] = std::from_chars(name.data() + prefix.size(), end, index);
    if (failure != std::errc() || rest != end) index = -1;
  }
  if (index < 0 || index > 127)
    throw input_error(fmt::format("unknown backend \"{}\"", name), "choose cpu, cuda:0, cuda:1, ...");
  open_cuda_library();
  int count = 0;
  try {
    count =
        at::globalContext().hasCUDA() ? at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount() : 0;
  } catch (const c10::Error& error) {
    throw Error(
        ErrorCode::environment, fmt::format("CUDA cannot be used: {}", error.what_without_backtrace()),
        "`nvidia-smi` must list the device, with a driver that this LibTorch knows; or serve with --backend cpu");
  }
  if (count == 0)
    throw Error(ErrorCode::environment, fmt::format("{}: the NVIDIA driver is missing or lists no device", name),
                "check that `nvidia-smi` lists a device");
  if (index >= count)
    throw Error(ErrorCode::environment, fmt::format("{}: this machine has {} CUDA devices", name, count),
                fmt::format("the last one is cuda:{}", count - 1));
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  use_own_stream(device);
  return device;
}

std::string kernels_name(at::Device device) {
  if (device.is_cpu()) return std::string(cpu_kernels_name());
  return cuda_kernels() != nullptr ? "cuda" : "aten";
}

void* native_stream(at::Device device) {
  return device.is_cpu() ? nullptr : c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void synchronize(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void wait_for_stream(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

namespace {

// A host tensor like `tensor`, which the first dimension's length may change from call to call.
at::Tensor staged(const at::Tensor& tensor, at::Tensor& buffer) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (!buffer.defined() || buffer.size(0) < bytes)
    buffer = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  return buffer.narrow(0, 0, bytes).view(tensor.scalar_type()).view(tensor.sizes());
}

}  // namespace

at::Tensor host_copy(const at::Tensor& values, at::Tensor& buffer) { return staged(values, buffer).copy_(values); }

std::span<std::byte> bytes_of(const at::Tensor& host) {
  MOTLEY_CHECK(host.is_cpu() && host.is_contiguous());
  return {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()};
}

void Collectives::sum(at::Tensor& tensor) {
  if (size() == 1) return;
  MOTLEY_CHECK(tensor.is_contiguous());
  const at::Tensor host = tensor.is_cpu() ? tensor : host_copy(tensor, mine_);
  group_->all_reduce(bytes_of(host),
                     tensor.scalar_type() == at::kFloat ? CollectiveElement::fp32 : CollectiveElement::bf16);
  if (!tensor.is_cpu()) tensor.copy_(host);
}

void Collectives::gather_columns(const at::Tensor& mine, at::Tensor all, const std::vector<std::int64_t>& bounds) {
  if (size() == 1) return;
  const bool on_host = mine.is_cpu(), receives = group_->rank() == 0;
  const at::Tensor from = on_host ? mine : host_copy(mine, mine_);
  const at::Tensor to = !receives || on_host ? all : staged(all, all_);
  for (std::int64_t row = 0; row < mine.size(0); ++row) {  // a row's columns lie together, those of several do not
    if (!receives) group_->send(bytes_of(from[row]), 0);
    for (int rank = 0; receives && rank < size(); ++rank) {
      const auto first = bounds[static_cast<std::size_t>(rank)], last = bounds[static_cast<std::size_t>(rank) + 1];
      const at::Tensor part = to[row].narrow(0, first, last - first);
      if (rank == 0)
        part.copy_(from[row]);
      else
        group_->receive(bytes_of(part), rank);
    }
  }
  if (receives && !on_host) all.copy_(to);
}

}  // namespace motley
