#include "motley/base/paths.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "motley/base/error.hpp"

namespace motley {

std::filesystem::path data_folder() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path source = MOTLEY_SOURCE_DIR;
  const fs::path candidates[] = {
      program / MOTLEY_INSTALLED_DATA,  // installed: bin/motley, "../share/motley"
      program / "../../data",           // built: build/release/motley
      source / "data",
  };
  for (const fs::path& folder : candidates)
    if (fs::is_directory(folder / "models", ignored)) return folder.lexically_normal();
  throw Error(ErrorCode::environment,
              fmt::format("motley's data folder is missing: looked for {}, {} and {}",
                          candidates[0].lexically_normal().string(), candidates[1].lexically_normal().string(),
                          candidates[2].string()),
              "install motley again, or run it from its source tree");
}

std::filesystem::path python_environment() {
  const char* named = std::getenv("MOTLEY_VENV");
  return named != nullptr && *named != '\0' ? std::filesystem::absolute(named) : std::filesystem::path(MOTLEY_VENV);
}

std::filesystem::path python_packages() { return python_environment() / MOTLEY_PYTHON_PACKAGES; }

}  // namespace motley
