#include "motley/engine/cuda/cuda_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr const char* hint =
    "build it with `./dev gpu --build`, or set MOTLEY_CUDA_KERNELS=none to do without, by LibTorch's kernels";

std::filesystem::path beside_program() {
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  return program.parent_path() / "libmotley_cuda.so";
}

}  // namespace

const cuda::Kernels& open_cuda_kernels(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(ErrorCode::environment, fmt::format("cannot open the library of CUDA kernels: {}", ::dlerror()), hint);
  void* symbol = ::dlsym(library, cuda::kernels_symbol);
  if (symbol == nullptr)
    throw Error(ErrorCode::environment,
                fmt::format("{} has no {}: it is not a library of CUDA kernels", path, cuda::kernels_symbol), hint);
  const cuda::Kernels& kernels = *reinterpret_cast<cuda::KernelsFunction*>(symbol)();
  if (kernels.version != cuda::kernels_version)
    throw Error(ErrorCode::environment,
                fmt::format("{} has kernels of version {}, and this program needs version {}", path, kernels.version,
                            cuda::kernels_version),
                hint);
  return kernels;
}

const cuda::Kernels* cuda_kernels() {
  static const cuda::Kernels* const kernels = []() -> const cuda::Kernels* {
    const char* named = std::getenv("MOTLEY_CUDA_KERNELS");
    if (named != nullptr && *named != '\0') return std::string(named) == "none" ? nullptr : &open_cuda_kernels(named);
    const std::filesystem::path path = beside_program();
    return std::filesystem::exists(path) ? &open_cuda_kernels(path.string()) : nullptr;
  }();
  return kernels;
}

}  // namespace motley
