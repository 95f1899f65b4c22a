// Where motley's own files are.
#pragma once

#include <filesystem>

namespace motley {

// The folder that holds the device catalogue and the model shapes (`data/` of the source tree, `share/motley` when
// installed). Looked for beside the running program first, then where the program was built. Throws an environment
// error where neither is.
std::filesystem::path data_folder();

}  // namespace motley
