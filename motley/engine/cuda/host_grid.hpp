// CUDA's language on the processor, so that a test runs the very source of a kernel: each thread of a block is a fiber,
// and barriers and exchanges within a warp wait for the others as they do on a device. A barrier that some threads
// never reach, and threads of a warp that wait for one another at different places, end the program with a message.
// Shared memory holds NaN or what the block before left; threads run in ascending or descending order by turns, so that
// what lacks a barrier shows. For one thread of the process at a time.
#pragma once

#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// clang-format off
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(2) __nv_bfloat16 { std::uint16_t bits; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct alignas(2) __half { std::uint16_t bits; };
struct alignas(4) __half2 { __half x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
// clang-format on

namespace motley::cuda::host_grid {

__extension__ using Float16 = _Float16;

enum class Waits { no, for_block, for_warp };

constexpr unsigned lanes = 32;

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  unsigned group;
};

struct Fiber {
  static constexpr std::size_t stack_bytes = 128 << 10;
  std::unique_ptr<char[]> stack{new char[stack_bytes]};
  ucontext_t start;
  void* at[5];
  bool started = false;
  bool done = true;
  Waits waits = Waits::no;
  unsigned exchanges = 0;    // in the warp so far
  std::vector<Copy> copies;  // asked for, and not made yet
  unsigned copy_groups = 0;  // ended
};

struct Grid {
  dim3 thread, block, block_size, grid_size;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::uint64_t> slots;  // [warp][2][lanes]: what threads of a warp give each other
  std::vector<uint4> shared;
  std::function<void()> body;
  Fiber* current = nullptr;
  unsigned index = 0;
  void* scheduler[5];
  unsigned blocks_run = 0;
};

inline Grid grid;

[[noreturn]] inline void stuck(const char* why) {
  std::fprintf(stderr, "a kernel on the processor: %s (block %u %u %u)\n", why, grid.block.x, grid.block.y,
               grid.block.z);
  std::abort();
}

// A device loads and stores whole packs only where they are aligned.
inline void check_aligned(const void* at, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(at) % bytes != 0) stuck("a pack that is not aligned");
}

// Not inlined, so that a function keeps nothing of its own over a switch.
#define MOTLEY_SWITCHES __attribute__((noinline, no_sanitize("address", "thread", "undefined"))) inline

// The compiler's own jumps: those of the C library tell sanitizers that a stack is left for good, and are slower.
MOTLEY_SWITCHES void jump(void** to) { __builtin_longjmp(to, 1); }

MOTLEY_SWITCHES void leave() {
  Fiber& fiber = *grid.current;
  if (__builtin_setjmp(fiber.at) == 0) jump(grid.scheduler);
}

inline void fiber_main() {
  for (;;) {
    grid.body();
    grid.current->done = true;
    leave();
  }
}

MOTLEY_SWITCHES void resume(Fiber& fiber) {
  grid.current = &fiber;
  if (__builtin_setjmp(grid.scheduler) != 0) return;
  if (fiber.started) jump(fiber.at);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = Fiber::stack_bytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, fiber_main, 0);
  setcontext(&fiber.start);
}

inline void wait(Waits what) {
  grid.current->waits = what;
  leave();
}

inline void run_until_wait(unsigned index) {
  grid.index = index;
  grid.thread = dim3(index % grid.block_size.x, index / grid.block_size.x % grid.block_size.y,
                     index / grid.block_size.x / grid.block_size.y);
  resume(*grid.fibers[index]);
}

// Lets those of [first, last) go on that all wait for one thing; whether they did.
inline bool release(unsigned first, unsigned last, Waits what) {
  bool any = false;
  for (unsigned i = first; i < last; ++i) {
    const Fiber& fiber = *grid.fibers[i];
    if (!fiber.done && fiber.waits != what) return false;
    any = any || !fiber.done;
  }
  for (unsigned i = first; i < last; ++i) grid.fibers[i]->waits = Waits::no;
  return any;
}

inline void run_block() {
  const unsigned threads = grid.block_size.x * grid.block_size.y * grid.block_size.z;
  const bool descending = grid.blocks_run++ % 2 == 1;
  for (unsigned i = 0; i < threads; ++i) {
    grid.fibers[i]->done = false;
    grid.fibers[i]->waits = Waits::no;
    grid.fibers[i]->exchanges = 0;
    grid.fibers[i]->copies.clear();
    grid.fibers[i]->copy_groups = 0;
  }
  for (;;) {
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned index = descending ? threads - 1 - i : i;
      const Fiber& fiber = *grid.fibers[index];
      if (!fiber.done && fiber.waits == Waits::no) run_until_wait(index);
    }
    const auto done = [](const auto& fiber) { return fiber->done; };
    if (std::all_of(grid.fibers.begin(), grid.fibers.begin() + threads, done)) return;
    bool moved = release(0, threads, Waits::for_block);
    for (unsigned first = 0; first < threads; first += lanes)
      moved = release(first, std::min(first + lanes, threads), Waits::for_warp) || moved;
    if (!moved) stuck("threads wait for others that do not come");
  }
}

// What each lane of the warp gave; until the lane's next exchange.
template <class T>
const std::uint64_t* gather(const T& value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  Fiber& fiber = *grid.current;
  std::uint64_t* slots = grid.slots.data() + (grid.index / lanes * 2 + fiber.exchanges++ % 2) * lanes;
  std::memcpy(&slots[grid.index % lanes], &value, sizeof(T));
  wait(Waits::for_warp);
  return slots;
}

template <class T>
T exchange(T value, unsigned from) {
  std::memcpy(&value, &gather(value)[from], sizeof(T));
  return value;
}

// Copies are made as late as may be.
inline void copy_later(void* to, const void* from, std::size_t bytes) {
  check_aligned(to, bytes);
  check_aligned(from, bytes);
  grid.current->copies.push_back({to, from, bytes, grid.current->copy_groups});
}
inline void end_copies() { ++grid.current->copy_groups; }
inline void wait_for_copies(unsigned later) {
  Fiber& fiber = *grid.current;
  std::erase_if(fiber.copies, [&](const Copy& copy) {
    const bool due = copy.group + later < fiber.copy_groups;
    if (due) std::memcpy(copy.to, copy.from, copy.bytes);
    return due;
  });
}

// While a thread waits for what another process writes; there are more of them than processors. Who sleeps gets a turn
// sooner than who looks on, or yields.
inline void let_other_processes_run() { ::usleep(20); }

inline std::int8_t byte_of(std::uint64_t bytes, unsigned i) { return static_cast<std::int8_t>(bytes >> 8 * i); }

// mma.sync m16n8k<k> of signed bytes, with k 16 or 32: d [16, 8] += a [16, k] * b [k, 8] in fragments as PTX lays them
// out. Lane l, in group l / 4 as number l % 4, holds of `a` rows group and group + 8 by turns, of each four columns
// from 4 * number on, then of each those from 16 + 4 * number on; of `b` the same of column `group`; of `d` two columns
// from 2 * number on of row group, then of row group + 8.
template <unsigned k>
void multiply_tiles(int (&d)[4], const unsigned (&a)[k / 8], const unsigned (&b)[k / 16]) {
  const unsigned lane = grid.index % lanes, group = lane / 4, number = lane % 4;
  std::int8_t rows[2][k], columns[2][k];
  for (unsigned part = 0; part < k / 16; ++part) {
    const std::uint64_t* of_a = gather(uint2{a[2 * part], a[2 * part + 1]});
    for (unsigned i = 0; i < 2; ++i)
      for (unsigned j = 0; j < 16; ++j) rows[i][16 * part + j] = byte_of(of_a[4 * group + j / 4], 4 * i + j % 4);
    const std::uint64_t* of_b = gather(b[part]);
    for (unsigned i = 0; i < 2; ++i)
      for (unsigned j = 0; j < 16; ++j) columns[i][16 * part + j] = byte_of(of_b[4 * (2 * number + i) + j / 4], j % 4);
  }
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned j = 0; j < k; ++j) d[i] += rows[i / 2][j] * columns[i % 2][j];
}

template <class Kernel, class... Arguments>
void run(Kernel kernel, dim3 grid_size, dim3 block_size, std::size_t shared_bytes, const Arguments&... arguments) {
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  if (threads == 0 || threads > 1024 || shared_bytes > 227 << 10) stuck("a block too large");
  if (grid_size.x == 0 || grid_size.y == 0 || grid_size.z == 0) stuck("an empty grid");
  if (grid_size.y > 65535 || grid_size.z > 65535) stuck("a grid too large");
  while (grid.fibers.size() < threads) grid.fibers.push_back(std::make_unique<Fiber>());
  grid.slots.resize(1024 * 2);
  grid.block_size = block_size;
  grid.grid_size = grid_size;
  grid.body = [&] { kernel(arguments...); };
  const unsigned nan = std::bit_cast<unsigned>(std::numeric_limits<float>::quiet_NaN());
  for (unsigned z = 0; z < grid_size.z; ++z)
    for (unsigned y = 0; y < grid_size.y; ++y)
      for (unsigned x = 0; x < grid_size.x; ++x) {
        grid.block = dim3(x, y, z);
        grid.shared.assign((shared_bytes + 15) / 16, {nan, nan, nan, nan});
        run_block();
      }
}

}  // namespace motley::cuda::host_grid

#define threadIdx (::motley::cuda::host_grid::grid.thread)
#define blockIdx (::motley::cuda::host_grid::grid.block)
#define blockDim (::motley::cuda::host_grid::grid.block_size)
#define gridDim (::motley::cuda::host_grid::grid.grid_size)

inline void __syncthreads() { ::motley::cuda::host_grid::wait(::motley::cuda::host_grid::Waits::for_block); }
inline void __syncwarp(unsigned = ~0U) { ::motley::cuda::host_grid::wait(::motley::cuda::host_grid::Waits::for_warp); }

template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  const int own = static_cast<int>(::motley::cuda::host_grid::grid.index % 32);
  return ::motley::cuda::host_grid::exchange(value, own / width * width + lane % width);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  const int own = static_cast<int>(::motley::cuda::host_grid::grid.index % 32), other = own ^ mask;
  return ::motley::cuda::host_grid::exchange(value, other / width == own / width ? other : own);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int by, int width = 32) {
  const int own = static_cast<int>(::motley::cuda::host_grid::grid.index % 32), other = own + by;
  return ::motley::cuda::host_grid::exchange(value, other / width == own / width ? other : own);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by, int width = 32) {
  const int own = static_cast<int>(::motley::cuda::host_grid::grid.index % 32), other = own - by;
  return ::motley::cuda::host_grid::exchange(value, other >= 0 && other / width == own / width ? other : own);
}

inline unsigned __ballot_sync(unsigned, bool yes) {
  unsigned all = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned own = ::motley::cuda::host_grid::grid.index % 32;
    all |= ::motley::cuda::host_grid::exchange(yes ? 1U << own : 0U, lane) & 1U << lane;
  }
  return all;
}
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }

inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<std::int8_t>(static_cast<unsigned>(a) >> 8 * i) *
           static_cast<std::int8_t>(static_cast<unsigned>(b) >> 8 * i);
  return sum;
}
inline int __dp4a(unsigned a, int b, int sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<std::uint8_t>(a >> 8 * i) * static_cast<std::int8_t>(static_cast<unsigned>(b) >> 8 * i);
  return sum;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
// The bytes of x, then those of y, that each four bits of the selector name, of 0 to 7.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned chosen = 0;
  for (unsigned i = 0; i < 4; ++i)
    chosen |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7U) & 0xffU) << 8 * i;
  return chosen;
}
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }

inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16(x), __float2bfloat16(y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {__bfloat162float(x.x), __bfloat162float(x.y)}; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return {x}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline float __half2float(__half x) {
  return static_cast<float>(std::bit_cast<::motley::cuda::host_grid::Float16>(x.bits));
}
inline __half __float2half_rn(float x) {
  return {std::bit_cast<std::uint16_t>(static_cast<::motley::cuda::host_grid::Float16>(x))};
}
inline __half __float2half(float x) { return __float2half_rn(x); }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __half __ushort_as_half(unsigned short x) { return {x}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
