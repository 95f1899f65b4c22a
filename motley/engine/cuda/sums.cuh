// Sums over the ranks of a stage, whose processes meet in memory that all of them reach: of their devices, or the
// host's.
//
// Every block of threads has a flag for each rank in the own segment, where that rank's block of the same number says
// how often it has come to a meeting. Flags only count up, modulo 2^32, so that nothing has to be reset; and they are
// words of 32 bits, written with release and read with acquire at the scope of the system. Peers' terms are read by
// plain loads after that: not by loads for constants, whose cache does not see what others write.
//
// Terms lie in two slots by turns. A rank that has met the others in one sum knows that all of them were done with the
// sum before (the kernels of a stream do not overlap beyond wait_for_previous()), so it may write over that one's slot.
#pragma once

#include "motley/engine/cuda/device.cuh"

namespace motley::cuda {

// Fewer on the processor, where each is a fiber.
#ifdef __CUDACC__
constexpr int sum_threads = 512;
#else
constexpr int sum_threads = 64;
#endif
constexpr unsigned looks_between_aborts = 256;

__device__ __forceinline__ void publish(std::uint32_t* word, std::uint32_t value) {
#ifdef __CUDACC__
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

__device__ __forceinline__ std::uint32_t look(const std::uint32_t* word) {
#ifdef __CUDACC__
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

// Packs of 16 bytes of a task's elements, the last of which may be short. Which thread has which depends on the task's
// count alone, since a block finds at its meetings what the other ranks' blocks of its number have written.
template <class T>
struct SumPacks {
  static constexpr int elements = 16 / sizeof(T);
  using Values = Pack<T, elements>;

  const SumTask& task;
  bool whole;  // terms are aligned, and their last pack is not short
  std::uint32_t slot;

  __device__ T* terms() const { return static_cast<T*>(task.terms); }
  __device__ T* of_rank(int rank) const {
    return reinterpret_cast<T*>(static_cast<char*>(task.segments[rank]) + sum_flags_bytes + slot * task.most_bytes);
  }
  __device__ Values load(std::int64_t pack) const {
    const T* from = terms() + pack * elements;
    if (whole) return load_pack<elements>(from);
    Values values;
    for (int i = 0; i < elements; ++i) values.of[i] = pack * elements + i < task.count ? from[i] : from_float<T>(0);
    return values;
  }
  __device__ void store(std::int64_t pack, const Values& values) const {
    T* to = terms() + pack * elements;
    if (whole) return store_pack<elements>(to, values);
    for (int i = 0; i < elements; ++i)
      if (pack * elements + i < task.count) to[i] = values.of[i];
  }
  __device__ Values sum(std::int64_t pack) const {
    Values all[most_sum_ranks];
#pragma unroll
    for (int r = 0; r < most_sum_ranks; ++r)
      if (r < task.ranks) all[r] = r == task.rank ? load(pack) : load_pack<elements>(of_rank(r) + pack * elements);
    Values sums;
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      float sum = to_float(all[0].of[i]);
#pragma unroll
      for (int r = 1; r < most_sum_ranks; ++r)
        if (r < task.ranks) sum += to_float(all[r].of[i]);
      sums.of[i] = from_float<T>(sum);
    }
    return sums;
  }
};

// What the block has written is there for all ranks' blocks of its number, and what they have for it; false where the
// sum was given up, in all threads of the block.
__device__ __forceinline__ bool meet(const SumTask& task, std::uint32_t turn, int* given_up) {
  constexpr int flags_of_block = 16;
  static_assert(sum_flags_bytes == most_sum_blocks * flags_of_block * sizeof(std::uint32_t));
  const auto flags = [&](int rank) {
    return static_cast<std::uint32_t*>(task.segments[rank]) + blockIdx.x * flags_of_block;
  };
  const int rank = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (rank < task.ranks) publish(flags(rank) + task.rank, turn);
  __syncwarp();  // all are told before one waits
  if (rank < task.ranks) {
    const std::uint32_t* flag = flags(task.rank) + rank;
    for (unsigned looks = 1; static_cast<std::int32_t>(look(flag) - turn) < 0; ++looks) {
      if (looks % looks_between_aborts == 0 && look(task.abort) != 0) {
        *given_up = 1;
        break;
      }
#ifndef __CUDACC__
      host_grid::let_other_processes_run();
#endif
    }
  }
  __syncthreads();
  return *given_up == 0;
}

// `in_parts`: rank r adds up part r of the packs, and leaves the sums in its own slot where its terms would be.
template <class T, bool in_parts>
__global__ void __launch_bounds__(sum_threads) sum_kernel(const __grid_constant__ SumTask task, bool whole) {
  let_next_begin();
  wait_for_previous();
  __shared__ int given_up;
  if (threadIdx.x == 0) given_up = 0;
  std::uint32_t* own = task.counters + 2 * blockIdx.x;
  std::uint32_t turn = own[0];
  const SumPacks<T> packs{task, whole, own[1]};
  constexpr int elements = SumPacks<T>::elements;
  const std::int64_t count = (task.count + elements - 1) / elements;
  const std::int64_t part = in_parts ? (count + task.ranks - 1) / task.ranks : count;
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  const auto step = static_cast<std::int64_t>(gridDim.x) * sum_threads;
  const auto for_part = [&](int rank, const auto& visit) {
    const std::int64_t first = in_parts ? rank * part : 0;
    const std::int64_t end = first + part < count ? first + part : count;
    for (std::int64_t pack = first + start; pack < end; pack += step) visit(pack);
  };
  const auto for_other_parts = [&](const auto& visit) {
    for (int by = 1; by < task.ranks; ++by) {  // not all of the same rank first
      const int rank = (task.rank + by) % task.ranks;
      for_part(rank, [&](std::int64_t pack) { visit(rank, pack); });
    }
  };

  T* to = packs.of_rank(task.rank);
  const auto offer = [&](std::int64_t pack) { store_pack<elements>(to + pack * elements, packs.load(pack)); };
  if constexpr (in_parts)
    for_other_parts([&](int, std::int64_t pack) { offer(pack); });
  else
    for_part(0, offer);
  if (!meet(task, ++turn, &given_up)) return;
  for_part(task.rank, [&](std::int64_t pack) {
    const typename SumPacks<T>::Values sums = packs.sum(pack);
    packs.store(pack, sums);
    if constexpr (in_parts) store_pack<elements>(to + pack * elements, sums);
  });
  if constexpr (in_parts) {
    if (!meet(task, ++turn, &given_up)) return;
    for_other_parts([&](int rank, std::int64_t pack) {
      packs.store(pack, load_pack<elements>(packs.of_rank(rank) + pack * elements));
    });
  }
  if (threadIdx.x != 0) return;
  own[0] = turn;
  own[1] ^= 1;
  // A sum's slot is the same for all blocks, also for those that the next one has and this one had not.
  if (blockIdx.x == 0)
    for (int other = static_cast<int>(gridDim.x); other < most_sum_blocks; ++other) task.counters[2 * other + 1] ^= 1;
}

inline int sum(const SumTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    constexpr int invalid_value = 1;  // cudaErrorInvalidValue
    constexpr std::int64_t elements = SumPacks<T>::elements;
    if (task.ranks < 2 || task.ranks > most_sum_ranks || task.rank < 0 || task.rank >= task.ranks || task.blocks < 1 ||
        task.blocks > most_sum_blocks || task.count < 0 || task.most_bytes % 16 != 0 ||
        task.count > task.most_bytes / static_cast<std::int64_t>(sizeof(T)))
      return invalid_value;
    const std::int64_t packs = (task.count + elements - 1) / elements;
    const unsigned blocks = blocks_for(task.in_parts != 0 ? (packs + task.ranks - 1) / task.ranks : packs, sum_threads);
    const dim3 grid(blocks < static_cast<unsigned>(task.blocks) ? blocks : static_cast<unsigned>(task.blocks));
    return launch(task.in_parts != 0 ? sum_kernel<T, true> : sum_kernel<T, false>, grid, dim3(sum_threads), 0, stream,
                  task, packs_fit<T>(task.count, task.terms));
  });
}

}  // namespace motley::cuda
