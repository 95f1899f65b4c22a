#!/usr/bin/env bash
# build.sh FOLDER OUTPUT: the plug-in library of CUDA kernels, compiled by the nvcc of FOLDER (of Python packages'
# layout), as OUTPUT. MOTLEY_CUDA_ARCH=N: for that compute capability (90) alone instead of all.
set -euo pipefail
cuda=$1/nvidia/cu13 output=$2

if [ -n "${MOTLEY_CUDA_ARCH:-}" ]; then
  targets=(-gencode "arch=compute_$MOTLEY_CUDA_ARCH,code=sm_$MOTLEY_CUDA_ARCH")
else
  # The last is for devices that are newer than this compiler: their driver compiles it.
  targets=(-gencode arch=compute_120,code=compute_120)
  for arch in 75 80 86 89 90 100 120; do
    targets+=(-gencode "arch=compute_$arch,code=sm_$arch")
  done
fi
mkdir -p "$(dirname "$output")"
# The new file only takes the old one's place when it is whole.
"$cuda/bin/nvcc" -shared -O3 --std=c++20 --expt-relaxed-constexpr --threads 0 -Xptxas -v -I. -I"$cuda/include" -L"$cuda/lib" --cudart static \
  -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra -Xlinker --exclude-libs,ALL "${targets[@]}" \
  -o "$output.new" motley/engine/cuda/kernels.cu
mv "$output.new" "$output"
