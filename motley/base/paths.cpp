#include "motley/base/paths.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

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

std::filesystem::path user_folder(const char* variable, const char* otherwise) {
  const auto absolute = [](const char* path) { return path != nullptr && *path == '/'; };
  if (const char* named = std::getenv(variable); absolute(named)) return std::filesystem::path(named) / "motley";
  const char* home = std::getenv("HOME");
  // A service may run without HOME. No folder that others can write stands in for it: keys are kept there.
  if (!absolute(home))
    if (const passwd* user = ::getpwuid(::geteuid())) home = user->pw_dir;
  if (!absolute(home))
    throw Error(ErrorCode::environment, "this user has no home folder, where keys and state would be kept",
                fmt::format("set HOME, or {} to a folder that this user alone can write", variable));
  return std::filesystem::path(home) / otherwise / "motley";
}

std::filesystem::path cache_folder() { return user_folder("XDG_CACHE_HOME", ".cache"); }
std::filesystem::path state_folder() { return user_folder("XDG_STATE_HOME", ".local/state"); }

}  // namespace motley
