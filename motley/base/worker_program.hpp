// The program of the workers that this one starts, and the LibTorch it will find.
#pragma once

#include <filesystem>
#include <string>

namespace motley {

// motley-worker, beside the program that runs. It may be missing.
std::filesystem::path worker_program();

// The version of LibTorch in the Python environment, "2.11.0". Throws an environment error where it is missing, or is
// not the version that motley-worker was linked with.
std::string libtorch_version();

// worker_program(), once LibTorch is known to be there. Where MOTLEY_VENV names an environment, sets LD_LIBRARY_PATH,
// which workers inherit: to be called before this process has threads.
std::filesystem::path prepare_worker_program();

}  // namespace motley
