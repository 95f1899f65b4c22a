// A library of CUDA kernels of another version than this program's.
#include "motley/engine/cuda/kernels.hpp"

extern "C" const motley::cuda::Kernels* motley_cuda_kernels() {
  static motley::cuda::Kernels kernels{};
  return &kernels;
}
