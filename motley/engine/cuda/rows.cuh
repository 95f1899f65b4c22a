// Kernels on rows of activations: norms, rotary positions, activations, sums, embeddings.
#pragma once

#include "motley/engine/cuda/device.cuh"

namespace motley::cuda {

// Of a block of whole warps: the sum in every thread. `parts` [warp_lanes] is shared, and of this sum alone.
__device__ __forceinline__ float block_sum(float x, float* parts) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warps = static_cast<int>(blockDim.x) / warp_lanes;
  x = warp_sum(x);
  if (lane == 0) parts[threadIdx.x / warp_lanes] = x;
  __syncthreads();
  return warp_sum(lane < warps ? parts[lane] : 0.0f);
}

// One block per row. The first packs of each thread stay in registers between the passes; what does not fit is read
// again.
template <class T, int N>
__global__ void __launch_bounds__(1024) norm_kernel(NormTask task) {
  let_next_begin();
  wait_for_previous();
  constexpr int kept_packs = 2;
  __shared__ float parts[2][warp_lanes];
  const auto* input = static_cast<const T*>(task.input) + blockIdx.x * task.columns;
  auto* out = static_cast<T*>(task.out) + blockIdx.x * task.columns;
  const auto* weight = static_cast<const T*>(task.weight);
  const auto* bias = static_cast<const T*>(task.bias);
  const int packs = static_cast<int>(task.columns / N), step = static_cast<int>(blockDim.x);
  Pack<T, N> kept[kept_packs];
#pragma unroll
  for (int i = 0; i < kept_packs; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * step;
    if (at < packs) kept[i] = load_pack<N>(input + at * N);
  }
  const auto for_packs = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < kept_packs; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * step;
      if (at < packs) visit(at * N, kept[i]);
    }
    for (int at = static_cast<int>(threadIdx.x) + kept_packs * step; at < packs; at += step)
      visit(at * N, load_pack<N>(input + at * N));
  };
  const auto columns = static_cast<float>(task.columns);
  float mean = 0;
  if (task.kind == NormKind::layer) {
    float sum = 0;
    for_packs([&](int, const Pack<T, N>& x) {
      for (int i = 0; i < N; ++i) sum += to_float(x.of[i]);
    });
    mean = block_sum(sum, parts[0]) / columns;
  }
  float squares = 0;
  for_packs([&](int, const Pack<T, N>& x) {
    for (int i = 0; i < N; ++i) {
      const float centred = to_float(x.of[i]) - mean;
      squares += centred * centred;
    }
  });
  const float factor = rsqrtf(block_sum(squares, parts[1]) / columns + task.epsilon);
  const float more = task.kind == NormKind::rms1p ? 1.0f : 0.0f;
  for_packs([&](int at, const Pack<T, N>& x) {
    Pack<T, N> result;
    float y[N];
    for (int i = 0; i < N; ++i) y[i] = (to_float(x.of[i]) - mean) * factor;
    if (weight != nullptr) {
      const Pack<T, N> w = load_pack<N>(weight + at);
      for (int i = 0; i < N; ++i) y[i] *= to_float(w.of[i]) + more;
    }
    if (bias != nullptr) {
      const Pack<T, N> b = load_pack<N>(bias + at);
      for (int i = 0; i < N; ++i) y[i] += to_float(b.of[i]);
    }
    for (int i = 0; i < N; ++i) result.of[i] = from_float<T>(y[i]);
    store_pack<N>(out + at, result);
  });
}

inline int norm(const NormTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    const auto run = [&]<int N>() {
      const std::int64_t threads = (task.columns / N + warp_lanes - 1) / warp_lanes * warp_lanes;
      return launch(norm_kernel<T, N>, dim3(static_cast<unsigned>(task.rows)),
                    dim3(static_cast<unsigned>(threads < 1024 ? threads : 1024)), 0, stream, task);
    };
    return packs_fit<T>(task.columns, task.input, task.out, task.weight, task.bias)
               ? run.template operator()<16 / sizeof(T)>()
               : run.template operator()<1>();
  });
}

constexpr int heads_of_block = 4;

// One warp per head.
template <class T>
__global__ void __launch_bounds__(heads_of_block* warp_lanes) heads_kernel(HeadsTask task) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, all_heads = task.heads + task.kv_heads;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * heads_of_block + threadIdx.x / warp_lanes;
  if (index >= task.rows * all_heads) return;
  const std::int64_t row = index / all_heads;
  const int head = static_cast<int>(index % all_heads);
  const bool of_query = head < task.heads;
  T* x = of_query ? static_cast<T*>(task.query) + (row * task.heads + head) * task.head_dim
                  : static_cast<T*>(task.key) + (row * task.kv_heads + head - task.heads) * task.head_dim;
  const auto* weight = static_cast<const T*>(of_query ? task.query_norm : task.key_norm);
  float factor = 1;
  const float more = task.kind == NormKind::rms1p ? 1.0f : 0.0f;
  if (weight != nullptr) {
    float squares = 0;
    for (int i = lane; i < task.head_dim; i += warp_lanes) squares += to_float(x[i]) * to_float(x[i]);
    factor = rsqrtf(warp_sum(squares) / static_cast<float>(task.head_dim) + task.epsilon);
  }
  const auto normed = [&](int i) {
    return weight == nullptr ? to_float(x[i]) : to_float(x[i]) * factor * (to_float(weight[i]) + more);
  };
  const float position = task.pairs > 0 ? static_cast<float>(task.positions[row]) : 0;
  for (int i = lane; i < task.pairs; i += warp_lanes) {
    float sine, cosine;
    sincosf(position * task.inverse_frequencies[i], &sine, &cosine);
    sine *= task.amplitude;
    cosine *= task.amplitude;
    const float a = normed(i), b = normed(i + task.pairs);
    x[i] = from_float<T>(a * cosine - b * sine);
    x[i + task.pairs] = from_float<T>(b * cosine + a * sine);
  }
  if (weight != nullptr)
    for (int i = 2 * task.pairs + lane; i < task.head_dim; i += warp_lanes) x[i] = from_float<T>(normed(i));
}

inline int heads(const HeadsTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    return launch(heads_kernel<T>, dim3(blocks_for(task.rows * (task.heads + task.kv_heads), heads_of_block)),
                  dim3(heads_of_block * warp_lanes), 0, stream, task);
  });
}

__device__ __forceinline__ float activation(const ActivationRule& rule, float x) {
  switch (rule.kind) {
    case ActivationKind::silu: return x / (1 + expf(-x));
    case ActivationKind::gelu: return 0.5f * x * (1 + erff(x * 0.70710678f));
    case ActivationKind::gelu_tanh: return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ActivationKind::relu: return fmaxf(x, 0.0f);
    case ActivationKind::swiglu: {
      const float least = fminf(x, rule.limit);
      return least / (1 + expf(-rule.slope * least));
    }
  }
  return x;
}

// What the activation's value is multiplied by.
__device__ __forceinline__ float factor_of(const ActivationRule& rule, float x) {
  return rule.kind == ActivationKind::swiglu ? fminf(fmaxf(x, -rule.limit), rule.limit) + 1 : x;
}

constexpr int elementwise_threads = 256;

template <class T, int N>
__global__ void __launch_bounds__(elementwise_threads) activate_kernel(ActivateTask task) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * elementwise_threads + threadIdx.x) * N;
  if (at >= task.count) return;
  T* values = static_cast<T*>(task.values) + at;
  const auto* factors = static_cast<const T*>(task.factors);
  Pack<T, N> x = load_pack<N>(values);
  float y[N];
  for (int i = 0; i < N; ++i) y[i] = activation(task.rule, to_float(x.of[i]));
  if (factors != nullptr) {
    const Pack<T, N> f = load_pack<N>(factors + at);
    for (int i = 0; i < N; ++i) y[i] *= factor_of(task.rule, to_float(f.of[i]));
  }
  for (int i = 0; i < N; ++i) x.of[i] = from_float<T>(y[i]);
  store_pack<N>(values, x);
}

inline int activate(const ActivateTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    const auto run = [&]<int N>() {
      return launch(activate_kernel<T, N>, dim3(blocks_for(task.count / N, elementwise_threads)),
                    dim3(elementwise_threads), 0, stream, task);
    };
    return packs_fit<T>(task.count, task.values, task.factors) ? run.template operator()<16 / sizeof(T)>()
                                                               : run.template operator()<1>();
  });
}

template <class T, int N>
__global__ void __launch_bounds__(elementwise_threads) add_kernel(AddTask task) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * elementwise_threads + threadIdx.x) * N;
  if (at >= task.rows * task.columns) return;
  T* sum = static_cast<T*>(task.sum) + at;
  const auto* bias = static_cast<const T*>(task.bias);
  Pack<T, N> x = load_pack<N>(sum);
  const Pack<T, N> terms = load_pack<N>(static_cast<const T*>(task.terms) + at);
  float y[N];
  for (int i = 0; i < N; ++i) y[i] = to_float(terms.of[i]);
  if (bias != nullptr) {
    const Pack<T, N> b = load_pack<N>(bias + at % task.columns);
    for (int i = 0; i < N; ++i) y[i] += to_float(b.of[i]);
  }
  for (int i = 0; i < N; ++i) x.of[i] = from_float<T>(to_float(x.of[i]) + y[i]);
  store_pack<N>(sum, x);
}

inline int add(const AddTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    const auto run = [&]<int N>() {
      return launch(add_kernel<T, N>, dim3(blocks_for(task.rows * task.columns / N, elementwise_threads)),
                    dim3(elementwise_threads), 0, stream, task);
    };
    return packs_fit<T>(task.columns, task.sum, task.terms, task.bias) ? run.template operator()<16 / sizeof(T)>()
                                                                       : run.template operator()<1>();
  });
}

// One block per row.
template <class T, int N>
__global__ void __launch_bounds__(elementwise_threads) look_up_kernel(EmbeddingTask task) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t index = task.tokens[blockIdx.x] - task.first;
  const bool inside = index >= 0 && index < task.table_rows;
  const auto* from = static_cast<const T*>(task.table) + (inside ? index : 0) * task.columns;
  T* to = static_cast<T*>(task.out) + blockIdx.x * task.columns;
  for (std::int64_t at = threadIdx.x * N; at < task.columns; at += elementwise_threads * N) {
    Pack<T, N> x;
    for (int i = 0; i < N; ++i) x.of[i] = from_float<T>(0);
    if (inside) x = load_pack<N>(from + at);
    store_pack<N>(to + at, x);
  }
}

inline int embedding(const EmbeddingTask& task, void* stream) {
  return with_element(task.element, [&]<class T>() {
    const auto run = [&]<int N>() {
      return launch(look_up_kernel<T, N>, dim3(static_cast<unsigned>(task.rows)), dim3(elementwise_threads), 0, stream,
                    task);
    };
    return packs_fit<T>(task.columns, task.out, task.table) ? run.template operator()<16 / sizeof(T)>()
                                                            : run.template operator()<1>();
  });
}

}  // namespace motley::cuda
