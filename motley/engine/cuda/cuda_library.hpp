// The library of CUDA kernels, opened at run time where there is one.
#pragma once

#include <string>

#include "motley/engine/cuda/kernels.hpp"

namespace motley {

// `libmotley_cuda.so` in this program's folder, or what the environment variable MOTLEY_CUDA_KERNELS names: a path, or
// "none". Null where there is none. Throws an environment error where a named library cannot be opened, or one is of
// another version.
const cuda::Kernels* cuda_kernels();

// Of this file. Throws an environment error where it cannot be opened, or is of another version. It stays open.
const cuda::Kernels& open_cuda_kernels(const std::string& path);

}  // namespace motley
