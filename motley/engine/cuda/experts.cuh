// Mixtures of experts: which ones a token takes, and products of few tokens with the matrices of these. The choice
// stays on the device, so that a step with experts can be recorded.
#pragma once

#include "motley/engine/cuda/products.cuh"

namespace motley::cuda {

// ---- routing ----

constexpr int tokens_of_block = 4;

// A warp for each token.
__global__ void __launch_bounds__(tokens_of_block* warp_lanes) score_kernel(const ScoreTask task) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * tokens_of_block + threadIdx.x / warp_lanes;
  if (token >= task.rows) return;
  float* const values = task.values + token * task.columns;
  if (task.kind == ScoreKind::sigmoid) {
    for (int i = lane; i < task.columns; i += warp_lanes) values[i] = 1.0f / (1.0f + expf(-values[i]));
    return;
  }
  float largest = values[0], sum = 0;
  for (int i = lane; i < task.columns; i += warp_lanes) largest = fmaxf(largest, values[i]);
  largest = warp_maximum(largest);
  for (int i = lane; i < task.columns; i += warp_lanes) sum += values[i] = expf(values[i] - largest);
  sum = warp_sum(sum);
  for (int i = lane; i < task.columns; i += warp_lanes) values[i] /= sum;
}

inline int score(const ScoreTask& task, void* stream) {
  return launch(score_kernel, dim3(blocks_for(task.rows, tokens_of_block)), tokens_of_block * warp_lanes, 0, stream,
                task);
}

// Ascends with the score, and of equal ones descends with the expert: no two of a row are the same.
__device__ inline std::uint64_t rank_of(float score, int expert) {
  const unsigned bits = __float_as_uint(score + 0.0f);  // -0 is 0
  const unsigned ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ascending) << 32 | (0x7fffffffu - static_cast<unsigned>(expert));
}
__device__ inline int expert_of(std::uint64_t rank) {
  return static_cast<int>(0x7fffffffu - static_cast<unsigned>(rank & 0xffffffffu));
}

// A warp for each token, whose lane i keeps the choice that comes i-th.
__global__ void __launch_bounds__(tokens_of_block* warp_lanes) route_kernel(const RouteTask task) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * tokens_of_block + threadIdx.x / warp_lanes;
  if (token >= task.rows) return;
  const float* const scores = task.scores + token * task.experts;
  std::uint64_t last = ~std::uint64_t{0};
  int own = 0;
  for (int choice = 0; choice < task.active; ++choice) {
    std::uint64_t next = 0;
    for (int expert = lane; expert < task.experts; expert += warp_lanes) {
      const float bias = task.selection_bias != nullptr ? task.selection_bias[expert] : 0.0f;
      const std::uint64_t rank = rank_of(scores[expert] + bias, expert);
      if (rank < last && rank > next) next = rank;
    }
    for (int mask = warp_lanes / 2; mask > 0; mask /= 2) {
      const std::uint64_t other = __shfl_xor_sync(whole_warp, next, mask);
      next = other > next ? other : next;
    }
    last = next;
    if (lane == choice) own = expert_of(next);
  }
  const bool chosen = lane < task.active;
  float share = chosen ? scores[own] : 0.0f;
  if (task.softmax != 0) {
    const float largest = warp_maximum(chosen ? share : -INFINITY);
    share = chosen ? expf(share - largest) : 0.0f;
    share /= warp_sum(share);
  }
  if (task.epsilon >= 0) share /= warp_sum(share) + task.epsilon;
  int place = 0;
  for (int other = 0; other < task.active; ++other)
    if (__shfl_sync(whole_warp, own, other) < own) ++place;
  if (!chosen) return;
  task.ids[token * task.active + place] = own;
  task.shares[token * task.active + place] = share * task.factor;
}

inline int route(const RouteTask& task, void* stream) {
  return launch(route_kernel, dim3(blocks_for(task.rows, tokens_of_block)), tokens_of_block * warp_lanes, 0, stream,
                task);
}

// ---- products ----

// The two lines of an expert, and the one row of the input that meets them.
struct ExpertRow {
  Matrix matrices[2];
  std::int64_t at;
  __device__ const Matrix& matrix(int i) const { return matrices[i]; }
  __device__ std::int64_t row(int) const { return at; }
};

// A block makes a few outputs of one row. Blocks of the same outputs follow one another, so that experts that several
// tokens take are read from memory once.
template <class Sums>
__global__ void __launch_bounds__(product_threads) multiply_experts(const ExpertsTask task, const Sums of_weights) {
  let_next_begin();
  const ProductTask& product = task.product;
  const bool gate = product.then == Then::gate;
  const std::int64_t row = blockIdx.x;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.y) * product_warps + threadIdx.x / warp_lanes;
  Line lines[2];
  find_lines(product, pair, lines);
  if (!lines[0].exists) return;
  wait_for_previous();
  float sums[2] = {};
  for (int choice = 0; choice < (gate ? 1 : task.active); ++choice) {
    const std::int64_t place = gate ? row : row * task.active + choice;
    const std::int64_t expert = task.ids[place] - task.first;
    if (expert < 0 || expert >= task.experts) continue;
    ExpertRow from{{}, gate ? place / task.active : place};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      from.matrices[i] = product.matrix[lines[i].matrix];
      from.matrices[i].values = task.values[lines[i].matrix][expert];
    }
    float products[2][1] = {};
    of_weights.add(product, lines, from, products);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (const void* bias = task.biases[lines[i].matrix][expert];
          bias != nullptr && lines[i].exists && threadIdx.x % warp_lanes == 0)
        products[i][0] += value_at(product.element, bias, lines[i].output);
    const float share = gate ? 1.0f : task.shares[place];
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] += share * products[i][0];
  }
#pragma unroll
  for (float& sum : sums) sum = warp_sum(sum);
  if (threadIdx.x % warp_lanes == 0) finish(product, lines, static_cast<int>(row), sums);
}

template <class Sums>
int launch_experts(const ExpertsTask& task, const Sums& of_weights, void* stream) {
  const ProductTask& product = task.product;
  const std::int64_t rows = product.then == Then::gate ? product.rows * task.active : product.rows / task.active;
  const dim3 grid(static_cast<unsigned>(rows), blocks_for(pairs_of(product), product_warps));
  return launch(multiply_experts<Sums>, grid, product_threads, 0, stream, task, of_weights);
}

template <class W, class T>
int experts_of_plain(const ExpertsTask& task, void* stream) {
  const ProductTask& product = task.product;
  bool aligned = packs_fit<T>(product.matrix[0].inputs, product.input) && packs_fit<T>(product.input_stride);
  for (int i = 0; i < product.matrices; ++i)
    for (int expert = 0; expert < task.experts; ++expert)
      aligned = aligned && packs_fit<W>(product.matrix[i].inputs, task.values[i][expert]);
  return aligned ? launch_experts(task, PlainSums<W, T, true>{}, stream)
                 : launch_experts(task, PlainSums<W, T, false>{}, stream);
}

inline int experts(const ExpertsTask& task, void* stream) {
  const Matrix& matrix = task.product.matrix[0];
  if (matrix.kind == WeightKind::fp32) return experts_of_plain<float, float>(task, stream);
  if (matrix.kind == WeightKind::bf16) return experts_of_plain<Bf16, Bf16>(task, stream);
  if (matrix.kind == WeightKind::fp16) return experts_of_plain<Fp16, float>(task, stream);
  const std::int64_t padded = padded_inputs(matrix);
  if (const int error = round_rows(task.product, padded, stream)) return error;
  return with_quantised_kind(matrix.kind,
                             [&](auto kind) { return launch_experts(task, QuantisedSums<kind()>{padded}, stream); });
}

}  // namespace motley::cuda
