// Where motley's own files are, this user's, and the Python environment it uses.
#pragma once

#include <filesystem>

namespace motley {

// The folder that holds the device catalogue and the model shapes (`data/` of the source tree, `share/motley` when
// installed). Looked for in the running program's folder first, then where the program was built. Throws an environment
// error where neither is.
std::filesystem::path data_folder();

// The Python environment that holds LibTorch and the packages of tokenizers: MOTLEY_VENV where it is set, otherwise the
// one that motley was built with. Absolute; it may be missing.
std::filesystem::path python_environment();
// Its packages.
std::filesystem::path python_packages();
// What an error says where something is missing from it.
inline constexpr const char* environment_hint =
    "run `./dev setup` in the source tree, or name an environment that has it in MOTLEY_VENV (docs/guides/install.md)";

// "motley" in the folder that the variable names, or else in the home folder's `otherwise`: of this user, who alone can
// write there. Throws an environment error where this user has none.
std::filesystem::path user_folder(const char* variable, const char* otherwise);
std::filesystem::path cache_folder();  // XDG_CACHE_HOME, ~/.cache
std::filesystem::path state_folder();  // XDG_STATE_HOME, ~/.local/state

}  // namespace motley
