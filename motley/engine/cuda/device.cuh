// What all kernels include: CUDA's language, by nvcc, by clang for AMD's devices (hip_language.hpp) or on the processor
// (host_grid.hpp), element types, launches.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif defined(__HIP__)
#include "motley/engine/cuda/hip_language.hpp"
#else
#include "motley/engine/cuda/host_grid.hpp"
#define MOTLEY_KERNELS_ON_HOST
#endif

// Products of tiles of bytes: CUDA's from compute capability 8.0 on. Kernels that need them are empty elsewhere.
#if defined(__HIP__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)
#define MOTLEY_WITHOUT_TILES
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "motley/engine/cuda/kernels.hpp"

namespace motley::cuda {

using Bf16 = __nv_bfloat16;
using Fp16 = __half;

constexpr unsigned whole_warp = 0xffffffffU;
constexpr int warp_lanes = 32;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(Fp16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(std::int8_t x) { return static_cast<float>(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ Fp16 from_float<Fp16>(float x) {
  return __float2half_rn(x);
}

// N elements that are loaded and stored as one.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T of[N];
};

namespace raw {
template <std::size_t bytes>
struct Of;
// clang-format off
template <> struct Of<1> { using Type = unsigned char; };
template <> struct Of<2> { using Type = unsigned short; };
template <> struct Of<4> { using Type = unsigned; };
template <> struct Of<8> { using Type = uint2; };
template <> struct Of<16> { using Type = uint4; };
// clang-format on
}  // namespace raw

// In one instruction, of at most 16 bytes: `from` is aligned to the pack's size.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  Pack<T, N> pack;
#ifdef MOTLEY_KERNELS_ON_HOST
  host_grid::check_aligned(from, sizeof(pack));
  std::memcpy(&pack, from, sizeof(pack));
#else
  const auto bytes = *reinterpret_cast<const typename raw::Of<sizeof(pack)>::Type*>(from);
  memcpy(&pack, &bytes, sizeof(pack));
#endif
  return pack;
}

template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
#ifdef MOTLEY_KERNELS_ON_HOST
  host_grid::check_aligned(to, sizeof(pack));
  std::memcpy(to, &pack, sizeof(pack));
#else
  typename raw::Of<sizeof(pack)>::Type bytes;
  memcpy(&bytes, &pack, sizeof(pack));
  *reinterpret_cast<decltype(bytes)*>(to) = bytes;
#endif
}

// Whether `multiple` elements of T are whole packs of 16 bytes, to which all pointers are aligned.
template <class T, class... Pointers>
bool packs_fit(std::int64_t multiple, const Pointers*... pointers) {
  return multiple % (16 / sizeof(T)) == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// Calls task.template operator()<T>() with the type of the element: 0 or what it returns; not for int8.
template <class Task>
int with_element(Element element, const Task& task) {
  return element == Element::fp32 ? task.template operator()<float>() : task.template operator()<Bf16>();
}

inline unsigned blocks_for(std::int64_t count, std::int64_t of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}

// The block's dynamic shared memory.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef MOTLEY_KERNELS_ON_HOST
  return reinterpret_cast<T*>(host_grid::grid.shared.data());
#else
  extern __shared__ uint4 motley_dynamic_shared[];
  return reinterpret_cast<T*>(motley_dynamic_shared);
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int mask = warp_lanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(whole_warp, x, mask);
  return x;
}

__device__ __forceinline__ float warp_maximum(float x) {
  for (int mask = warp_lanes / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(whole_warp, x, mask));
  return x;
}

// Kernels overlap: from compute capability 9.0 on the next one's blocks may take their places as soon as all blocks of
// this one have theirs. So each lets the next begin, and waits here for the one before to be done before it reads or
// writes what that may have to do with. What is not written, weights above all, may be fetched earlier.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void prefetch(const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#else
  (void)from;
#endif
}

// Bytes from global into shared memory, by which no thread waits: all copies up to the last but `later` of the calls of
// end_copies() are done after wait_for_copies<later>(), for the thread that asked for them. Of 4, 8 or 16 bytes,
// aligned.
template <int bytes>
__device__ __forceinline__ void copy_later(void* to, const void* from) {
#ifdef __CUDACC__
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(bytes) : "memory");
#elif defined(MOTLEY_KERNELS_ON_HOST)
  host_grid::copy_later(to, from, bytes);
#else
  *static_cast<typename raw::Of<bytes>::Type*>(to) = *static_cast<const typename raw::Of<bytes>::Type*>(from);
#endif
}
__device__ __forceinline__ void end_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(MOTLEY_KERNELS_ON_HOST)
  host_grid::end_copies();
#endif
}
template <int later>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(later) : "memory");
#elif defined(MOTLEY_KERNELS_ON_HOST)
  host_grid::wait_for_copies(later);
#endif
}

// The compute capability's first number; on the processor, which can do all, a high one, and a low one of AMD's.
inline int device_major() {
#ifdef __CUDACC__
  static const int found = [] {
    int device = 0, major = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    return known ? major : 0;
  }();
  return found;
#elif defined(MOTLEY_KERNELS_ON_HOST)
  return 9;
#else
  return 7;
#endif
}

// As many blocks have a place at once, if nothing else is there; on the processor they come one after the other.
inline int multiprocessors() {
#ifdef __CUDACC__
  int device = 0, count = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
  return known ? count : 1;
#else
  return 1 << 10;
#endif
}

// Of a block's dynamic shared memory, where a kernel asks for it: a little is left for static variables.
inline std::size_t most_shared_bytes() {
  constexpr std::size_t left = 1 << 10;
#ifdef __CUDACC__
  static const int found = [] {
    int device = 0, bytes = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
    return known ? bytes : 48 << 10;
  }();
  return static_cast<std::size_t>(found) - left;
#elif defined(MOTLEY_KERNELS_ON_HOST)
  return (99 << 10) - left;
#else
  return (64 << 10) - left;
#endif
}

// Puts a kernel on the stream: 0, or a cudaError_t. A grid of no blocks is nothing to do.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, void* stream,
           const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
#ifdef __CUDACC__
  if (shared_bytes > 47 << 10)  // with static variables more than the 48 KiB that need no asking
    if (const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
        error != cudaSuccess)
      return error;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = device_major() >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
#elif defined(MOTLEY_KERNELS_ON_HOST)
  (void)stream;
  host_grid::run(kernel, grid, block, shared_bytes, arguments...);
  return 0;
#else
  std::tuple<Parameters...> values(arguments...);
  return std::apply(
      [&](Parameters&... value) {
        void* places[] = {&value...};
        return hipLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, places, shared_bytes, stream);
      },
      values);
#endif
}

}  // namespace motley::cuda
