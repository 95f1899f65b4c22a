#include "motley/base/worker_program.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"

namespace motley {
namespace {

std::filesystem::path libtorch_folder() { return python_packages() / "torch/lib"; }

// The line `__version__ = '2.11.0+cu130'` of torch/version.py, without the build: each is linked in the same way.
std::string version_in(const std::filesystem::path& file) {
  constexpr std::string_view key = "__version__ = '";
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return line.substr(key.size(), line.find_first_of("+'", key.size()) - key.size());
  return "";
}

}  // namespace

std::filesystem::path worker_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "motley-worker";
}

std::string libtorch_version() {
  const std::filesystem::path library = libtorch_folder() / "libtorch_cpu.so";
  std::error_code ignored;
  if (!std::filesystem::exists(library, ignored))
    throw Error(ErrorCode::environment,
                fmt::format("the Python environment {} lacks LibTorch: {} is missing", python_environment().string(),
                            library.string()),
                environment_hint);
  const std::string found = version_in(python_packages() / "torch/version.py");
  if (found != MOTLEY_TORCH_VERSION)
    throw Error(ErrorCode::environment,
                fmt::format("the Python environment {} has LibTorch {}, and motley-worker needs {}",
                            python_environment().string(), found.empty() ? "of an unknown version" : found,
                            MOTLEY_TORCH_VERSION),
                environment_hint);
  return found;
}

std::filesystem::path prepare_worker_program() {
  libtorch_version();
  if (const char* named = std::getenv("MOTLEY_VENV"); named != nullptr && *named != '\0') {
    // The loader looks there before the folder that motley-worker was linked with.
    std::string folders = libtorch_folder().string();
    if (const char* others = std::getenv("LD_LIBRARY_PATH"); others != nullptr && *others != '\0')
      folders += fmt::format(":{}", others);
    ::setenv("LD_LIBRARY_PATH", folders.c_str(), 1);
  }
  return worker_program();
}

}  // namespace motley
