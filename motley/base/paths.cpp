#include "motley/base/paths.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

std::filesystem::path data_folder() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path source = MOTLEY_SOURCE_DIR;
  const fs::path candidates[] = {
      program / "../share/motley",  // installed: bin/motley
      program / "../../data",       // built: build/release/motley
      source / "data",
  };
  for (const fs::path& folder : candidates)
    if (fs::is_directory(folder / "models", ignored)) return folder.lexically_normal();
  throw Error(ErrorCode::environment,
              fmt::format("motley's data folder is missing: neither {}, {} nor {} is there",
                          candidates[0].lexically_normal().string(), candidates[1].lexically_normal().string(),
                          candidates[2].string()),
              "install motley again, or run it from its source tree");
}

}  // namespace motley
