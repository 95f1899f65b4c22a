#include "motley/base/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

Nvml::Nvml(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!library_)
    throw Error(ErrorCode::environment, fmt::format("cannot open {}: no NVIDIA driver", library),
                "install NVIDIA's driver, or use the processor");
  call("nvmlInit_v2");
}

Nvml::~Nvml() { ask("nvmlShutdown"); }

void Nvml::Close::operator()(void* library) const { ::dlclose(library); }

void* Nvml::find(const char* name) const { return ::dlsym(library_.get(), name); }

void Nvml::fail(const char* name, NvmlAnswer answer) {
  throw Error(ErrorCode::environment,
              answer == NvmlAnswer::missing
                  ? fmt::format("NVIDIA's management library has no {}", name)
                  : fmt::format("NVIDIA's management library: {}: error {}", name, static_cast<int>(answer)),
              "`nvidia-smi` must list the machine's GPUs");
}

}  // namespace motley
