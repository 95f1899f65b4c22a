// Choosing tokens.
#pragma once

#include "motley/engine/cuda/device.cuh"

namespace motley::cuda {

constexpr int draw_threads = 1024;
constexpr int draw_warps = draw_threads / warp_lanes;

struct Largest {
  float logit;
  std::int32_t token;
};

// The lower token of equals; NaN never wins.
__device__ __forceinline__ Largest larger(Largest a, Largest b) {
  return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}

__device__ __forceinline__ Largest warp_largest(Largest x) {
  for (int mask = warp_lanes / 2; mask > 0; mask /= 2)
    x = larger(x, {__shfl_xor_sync(whole_warp, x.logit, mask), __shfl_xor_sync(whole_warp, x.token, mask)});
  return x;
}

// One block per row. Each warp takes a contiguous piece of the columns, so that sums in the order of warps, and of
// lanes within 32 columns, are in the order of tokens.
static __global__ void __launch_bounds__(draw_threads) draw_kernel(DrawTask task) {
  let_next_begin();
  wait_for_previous();
  __shared__ Largest largest_of[draw_warps];
  __shared__ double sum_of[draw_warps];
  const std::int64_t row = blockIdx.x;
  const int columns = static_cast<int>(task.columns), lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const float* logits = task.logits + row * task.columns;
  const int piece = (columns + draw_threads - 1) / draw_threads * warp_lanes;
  const int begin = warp * piece, end = begin + piece < columns ? begin + piece : columns;

  Largest largest{-INFINITY, INT32_MAX};
#pragma unroll 8
  for (int i = begin + lane; i < end; i += warp_lanes) {
    const float logit = logits[i];
    if (logit > largest.logit) largest = {logit, i};
  }
  largest = warp_largest(largest);
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
  largest = warp_largest(largest_of[lane]);
  const float temperature = task.temperatures[row];
  if (largest.logit == -INFINITY || temperature == 0 || largest.logit == INFINITY) {
    if (threadIdx.x == 0) task.tokens[row] = largest.logit == -INFINITY ? -1 : largest.token;
    return;
  }

  const float least = task.min_p[row];
  const auto weight = [&](int i) {
    const float logit = logits[i];
    const float w = logit > -INFINITY ? expf((logit - largest.logit) / temperature) : 0;  // 0 of NaN, too
    return w < least && i != largest.token ? 0.0f : w;
  };
  double sum = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += warp_lanes) sum += static_cast<double>(weight(i));
  for (int mask = warp_lanes / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(whole_warp, sum, mask);
  if (lane == 0) sum_of[warp] = sum;
  __syncthreads();
  if (warp != 0) return;

  // The piece in which the running sum exceeds the target; by rounding none may be: then the last with any weight.
  double total = 0;
#pragma unroll 1  // all at once they would fill the registers
  for (int i = 0; i < draw_warps; ++i) total += sum_of[i];
  const double target = task.uniform[row] * total;
  double before = 0;
  int chosen = -1;
  double before_chosen = 0;
#pragma unroll 1
  for (int i = 0; i < draw_warps; ++i) {
    if (sum_of[i] > 0) {
      chosen = i;
      before_chosen = before;
    }
    before += sum_of[i];
    if (before > target) break;
  }
  int last = largest.token;
  double running = before_chosen;
  const int piece_end = (chosen + 1) * piece < columns ? (chosen + 1) * piece : columns;
  for (int first = chosen * piece; first < piece_end; first += warp_lanes) {
    const int i = first + lane;
    const float own = i < piece_end ? weight(i) : 0.0f;
    double reached = static_cast<double>(own);  // with all lanes below
    for (int by = 1; by < warp_lanes; by *= 2) {
      const double below = __shfl_up_sync(whole_warp, reached, by);
      if (lane >= by) reached += below;
    }
    const unsigned with_weight = __ballot_sync(whole_warp, own > 0);
    const unsigned exceeding = __ballot_sync(whole_warp, own > 0 && running + reached > target);
    if (exceeding != 0) {
      last = first + __ffs(static_cast<int>(exceeding)) - 1;
      break;
    }
    if (with_weight != 0) last = first + warp_lanes - 1 - __clz(static_cast<int>(with_weight));
    running += __shfl_sync(whole_warp, reached, warp_lanes - 1);
  }
  if (lane == 0) task.tokens[row] = last;
}

inline int draw(const DrawTask& task, void* stream) {
  return launch(draw_kernel, dim3(static_cast<unsigned>(task.rows)), dim3(draw_threads), 0, stream, task);
}

}  // namespace motley::cuda
