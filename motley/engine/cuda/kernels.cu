// The plug-in library of CUDA kernels: one symbol, the table of what kernels.hpp names. Compiled by nvcc for GPUs; and
// by a C++ compiler for tests, where the kernels run on the processor and nothing can be recorded.
#include "motley/engine/cuda/kernels.hpp"

#include "motley/engine/cuda/attention.cuh"
#include "motley/engine/cuda/draw.cuh"
#include "motley/engine/cuda/products.cuh"
#include "motley/engine/cuda/rows.cuh"

namespace motley::cuda {
namespace {

#ifdef __CUDACC__
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

// Other threads of the program may allocate and wait meanwhile.
int graph_begin(void* stream) { return cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal); }

int graph_end(void* stream, void** graph) {
  cudaGraph_t recorded = nullptr;
  if (const cudaError_t error = cudaStreamEndCapture(stream_of(stream), &recorded); error != cudaSuccess) return error;
  cudaGraphExec_t runnable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&runnable, recorded, 0);
  cudaGraphDestroy(recorded);
  *graph = runnable;
  return error;
}

int graph_launch(void* graph, void* stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream));
}

void graph_free(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int memory(std::int64_t* free_bytes, std::int64_t* total_bytes) {
  std::size_t free = 0, total = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  *free_bytes = static_cast<std::int64_t>(free);
  *total_bytes = static_cast<std::int64_t>(total);
  return error;
}
#else
constexpr int not_supported = 801;  // cudaErrorNotSupported

int graph_begin(void*) { return not_supported; }
int graph_end(void*, void** graph) {
  *graph = nullptr;
  return not_supported;
}
int graph_launch(void*, void*) { return not_supported; }
void graph_free(void*) {}
int memory(std::int64_t*, std::int64_t*) { return not_supported; }
const char* error_text(int) { return "this library runs on the processor"; }
#endif

constexpr Kernels kernels = {
    .version = kernels_version,
    .most_rows = most_plain_rows,
    .most_quantised_rows = most_quantised_rows,
    .norm = norm,
    .heads = heads,
    .activate = activate,
    .add = add,
    .look_up = look_up,
    .write = write,
    .attend = attend,
    .gather = gather,
    .draw = draw,
    .product = product,
    .product_scratch_bytes = product_scratch_bytes,
    .expand = expand,
    .memory = memory,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .error_text = error_text,
};

}  // namespace
}  // namespace motley::cuda

extern "C" __attribute__((visibility("default"))) const motley::cuda::Kernels* motley_cuda_kernels() {
  return &motley::cuda::kernels;
}
