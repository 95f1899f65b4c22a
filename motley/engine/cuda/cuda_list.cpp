#include "motley/engine/cuda/cuda_list.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "motley/base/error.hpp"
#include "motley/engine/cuda/cuda_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"

namespace motley {
namespace {

// CUdevice_attribute, of which LibTorch's interface tells nothing without CUDA's headers.
enum class DriverAttribute : int { run_time_limit = 17, capability_major = 75, capability_minor = 76 };

// NVIDIA's driver, by its own functions. LibTorch has started it before.
class DriverLibrary {
 public:
  DriverLibrary() : handle_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      throw Error(ErrorCode::environment, "cannot open libcuda.so.1: no NVIDIA driver",
                  "install NVIDIA's driver, or use the processor");
    call("cuInit", 0U);
  }

  template <class... A>
  void call(const char* name, A... arguments) const {
    auto* function = reinterpret_cast<int (*)(A...)>(::dlsym(handle_, name));
    const int error = function == nullptr ? -1 : function(arguments...);
    if (error != 0)
      throw Error(ErrorCode::environment,
                  function == nullptr ? fmt::format("NVIDIA's driver has no {}", name)
                                      : fmt::format("NVIDIA's driver: {}: error {}", name, error),
                  "`nvidia-smi` must list the machine's GPUs");
  }
  int attribute(int device, DriverAttribute which) const {
    int value = 0;
    call("cuDeviceGetAttribute", &value, static_cast<int>(which), device);
    return value;
  }

 private:
  void* handle_;  // stays open: LibTorch uses it
};

std::string uuid_text(const char* kind, const std::array<unsigned char, 16>& bytes) {
  std::string text = kind;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
  return text;
}

ListedGpu listed_gpu(const DriverLibrary& driver, int device) {
  ListedGpu gpu;
  std::array<char, 128> text{};
  driver.call("cuDeviceGetName", text.data(), static_cast<int>(text.size() - 1), device);
  gpu.name = text.data();
  text.fill(0);
  driver.call("cuDeviceGetPCIBusId", text.data(), static_cast<int>(text.size() - 1), device);
  gpu.pci_bus = text.data();
  std::array<unsigned char, 16> uuid{};
  driver.call("cuDeviceGetUuid_v2", uuid.data(), device);
  gpu.uuid = uuid_text(whole_card(gpu.name) == gpu.name ? "GPU-" : "MIG-", uuid);
  gpu.compute_capability = driver.attribute(device, DriverAttribute::capability_major) +
                           0.1 * driver.attribute(device, DriverAttribute::capability_minor);
  // The driver ends what runs for too long on a card that shows a desktop.
  gpu.display = driver.attribute(device, DriverAttribute::run_time_limit) != 0;
  const auto [free, total] = c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(static_cast<at::DeviceIndex>(device));
  gpu.free_bytes = static_cast<std::int64_t>(free);
  gpu.total_bytes = static_cast<std::int64_t>(total);
  return gpu;
}

// The kernel module's version, where the kernel tells it, and that of the interface to it.
std::string driver_version(const DriverLibrary& driver) {
  int interface = 0;
  driver.call("cuDriverGetVersion", &interface);
  std::ifstream module("/proc/driver/nvidia/version");
  const auto is_version = [](const std::string& word) {
    return word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
  };
  for (std::string word; module >> word;)
    if (is_version(word)) return fmt::format("{} ({})", word, interface);
  return fmt::format("{}", interface);
}

}  // namespace

std::vector<ListedGpu> list_cuda_devices() {
  ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  const int count = count_cuda_devices();
  try {
    const DriverLibrary driver;
    const cuda::Kernels* kernels = cuda_kernels();
    const std::string software = fmt::format("driver {}, LibTorch {}, kernels {}", driver_version(driver),
                                             TORCH_VERSION, kernels != nullptr ? kernels->version : 0);
    std::vector<ListedGpu> gpus;
    for (int device = 0; device < count; ++device) {
      gpus.push_back(listed_gpu(driver, device));
      gpus.back().software = software;
      if (kernels != nullptr) gpus.back().kernels = kernels->version;
    }
    // No slice of a card reaches another's memory.
    for (int device = 0; device < count; ++device)
      for (int other = 0; other < count; ++other) {
        ListedGpu& gpu = gpus[static_cast<std::size_t>(device)];
        const ListedGpu& peer = gpus[static_cast<std::size_t>(other)];
        if (device == other || gpu.is_slice() || peer.is_slice()) continue;
        int reaches = 0;
        driver.call("cuDeviceCanAccessPeer", &reaches, device, other);
        if (reaches != 0) gpu.peers.push_back(peer.uuid);
      }
    return gpus;
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::environment, fmt::format("CUDA cannot be used: {}", error.what_without_backtrace()));
  }
}

}  // namespace motley
