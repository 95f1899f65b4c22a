// NCCL through the interface for vendors' libraries, on the GPU of this machine: an island of one device sums its data.
#include <dlfcn.h>
#include <fmt/format.h>

#include <iostream>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/transport/collective_element.hpp"
#include "motley/engine/cuda/nccl.hpp"

namespace motley {
namespace {

// CUDA's runtime library, of which this needs four functions.
class CudaRuntime {
 public:
  CudaRuntime() : library_(::dlopen("libcudart.so.13", RTLD_NOW)) {
    if (library_ == nullptr)
      throw Error(ErrorCode::environment, ::dlerror(), "LD_LIBRARY_PATH must name CUDA's libraries");
  }
  template <class... A>
  void call(const char* name, A... arguments) const {
    auto* function = reinterpret_cast<int (*)(A...)>(::dlsym(library_, name));
    const int error = function == nullptr ? -1 : function(arguments...);
    if (error != 0) throw Error(ErrorCode::environment, fmt::format("{}: error {}", name, error));
  }

 private:
  void* library_;
};

void run() {
  constexpr std::size_t count = 100'000;
  constexpr int to_device = 1, to_host = 2;
  const CudaRuntime cuda;
  void *stream = nullptr, *data = nullptr;
  cuda.call("cudaStreamCreate", &stream);
  cuda.call("cudaMalloc", &data, count * sizeof(float));
  std::vector<float> values(count), back(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000) / 8;
  cuda.call("cudaMemcpy", data, static_cast<const void*>(values.data()), count * sizeof(float), to_device);
  const auto library = VendorLibrary::open("libnccl.so.2");
  VendorIsland island(library, library->new_island(), 0, 1, 30);
  island.all_reduce(data, data, count, CollectiveElement::fp32, CollectiveReduction::sum, stream);
  cuda.call("cudaStreamSynchronize", stream);
  cuda.call("cudaMemcpy", static_cast<void*>(back.data()), static_cast<const void*>(data), count * sizeof(float),
            to_host);
  if (back != values) throw Error(ErrorCode::internal, "the sum of one device's data is not its data");
  std::cout << fmt::format("NCCL {}: {} numbers summed\n", library->version(), count);
}

}  // namespace
}  // namespace motley

int main() {
  try {
    motley::run();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
