// The plug-in library of CUDA kernels: one symbol, the table of what kernels.hpp names. Compiled by nvcc for GPUs; and
// by a C++ compiler for tests, where the kernels run on the processor and nothing can be recorded.
#include "motley/engine/cuda/kernels.hpp"

#include "motley/engine/cuda/attention.cuh"
#include "motley/engine/cuda/draw.cuh"
#include "motley/engine/cuda/experts.cuh"
#include "motley/engine/cuda/int8_rows.cuh"
#include "motley/engine/cuda/products.cuh"
#include "motley/engine/cuda/rows.cuh"
#include "motley/engine/cuda/sums.cuh"

#include <algorithm>

#ifndef __CUDACC__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#endif

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

int peer_allocate(std::int64_t bytes, void** memory, PeerHandle* handle) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(PeerHandle));
  if (const cudaError_t error = cudaMalloc(memory, static_cast<std::size_t>(bytes)); error != cudaSuccess) return error;
  const cudaError_t error = cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(handle), *memory);
  if (error != cudaSuccess) {
    cudaFree(*memory);
    *memory = nullptr;
  }
  return error;
}

void peer_free(void* memory) { cudaFree(memory); }

int peer_open(const PeerHandle& handle, void** memory) {
  cudaIpcMemHandle_t given;
  std::memcpy(&given, &handle, sizeof given);
  return cudaIpcOpenMemHandle(memory, given, cudaIpcMemLazyEnablePeerAccess);
}

void peer_close(void* memory) { cudaIpcCloseMemHandle(memory); }

int peer_copy(void* to, const void* from, std::int64_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_of(stream));
}

int pin(void* memory, std::int64_t bytes) {
  return cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable | cudaHostRegisterMapped);
}

int pinned_address(void* memory, void** address) { return cudaHostGetDevicePointer(address, memory, 0); }

void unpin(void* memory) { cudaHostUnregister(memory); }
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

// Shared memory of the host, by the number of its file at this process.
struct HostShare {
  std::int64_t process, file, bytes;
};
std::map<void*, std::pair<std::int64_t, int> > shares;  // of which this process has the bytes, and the file or -1

int map_share(const HostShare& share, int file, void** memory) {
  void* pages =
      file < 0 ? MAP_FAILED
               : ::mmap(nullptr, static_cast<std::size_t>(share.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (pages == MAP_FAILED) return not_supported;
  *memory = pages;
  return 0;
}

int peer_allocate(std::int64_t bytes, void** memory, PeerHandle* handle) {
  const int file = ::memfd_create("motley-peer", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, bytes) != 0) return not_supported;
  const HostShare share{::getpid(), file, bytes};
  std::memcpy(handle, &share, sizeof share);
  const int error = map_share(share, file, memory);
  if (error == 0) shares[*memory] = {bytes, file};
  return error;
}

void peer_free(void* memory) {
  const auto [bytes, file] = shares.at(memory);
  ::munmap(memory, static_cast<std::size_t>(bytes));
  if (file >= 0) ::close(file);
  shares.erase(memory);
}

int peer_open(const PeerHandle& handle, void** memory) {
  HostShare share{};
  std::memcpy(&share, &handle, sizeof share);
  const std::string path = "/proc/" + std::to_string(share.process) + "/fd/" + std::to_string(share.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int error = map_share(share, file, memory);
  if (file >= 0) ::close(file);
  if (error == 0) shares[*memory] = {share.bytes, -1};
  return error;
}

void peer_close(void* memory) { peer_free(memory); }

int pin(void*, std::int64_t) { return 0; }
int pinned_address(void* memory, void** address) { return *address = memory, 0; }
void unpin(void*) {}

int peer_copy(void* to, const void* from, std::int64_t bytes, void*) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
  return 0;
}
const char* error_text(int) { return "this library runs on the processor"; }
#endif

constexpr Kernels kernels = {
    .version = kernels_version,
    .most_rows = most_plain_rows,
    .most_quantised_rows = most_quantised_rows,
    .most_quantised_tokens = most_tile_rows,
    .sum_blocks = most_sum_blocks,
    .norm = norm,
    .heads = heads,
    .activate = activate,
    .add = add,
    .embedding = embedding,
    .write = write,
    .attend = attend,
    .gather = gather,
    .draw = draw,
    .product = product,
    .product_scratch_bytes = product_scratch_bytes,
    .score = score,
    .route = route,
    .experts = experts,
    .expand = expand,
    .pack_int8 = pack_int8,
    .sum = sum,
    .memory = memory,
    .peer_allocate = peer_allocate,
    .peer_free = peer_free,
    .peer_open = peer_open,
    .peer_close = peer_close,
    .peer_copy = peer_copy,
    .pin = pin,
    .pinned_address = pinned_address,
    .unpin = unpin,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .error_text = error_text,
};

}  // namespace
}  // namespace motley::cuda

extern "C" __attribute__((visibility("default"))) const motley::cuda::Kernels* motley_cuda_kernels() {
  // Without tensor cores for bytes no more rows than dots take.
  static const motley::cuda::Kernels of_device = [] {
    motley::cuda::Kernels all = motley::cuda::kernels;
    if (motley::cuda::device_major() < 8) all.most_quantised_rows = motley::cuda::most_tile_rows;
    all.sum_blocks = std::min(all.sum_blocks, motley::cuda::multiprocessors());
    return all;
  }();
  return &of_device;
}
