// The loops of an instruction set. Included once per set (cpu_kernels_*.cpp), inside a namespace of its own, under its
// `#pragma GCC target` and after `vector_bytes`, the width of its registers.
#include "motley/engine/cpu/cpu_kernels_vectors.hpp"
//
#include "motley/engine/cpu/cpu_kernels_attention.hpp"
#include "motley/engine/cpu/cpu_kernels_delta.hpp"
#ifdef MOTLEY_AMX
#include "motley/engine/cpu/cpu_kernels_tiles.hpp"
#endif
#include "motley/engine/cpu/cpu_kernels_products.hpp"
#include "motley/engine/cpu/cpu_kernels_quantised.hpp"

template <class T>
void norm(const NormTask<T>& task, std::int64_t first, std::int64_t last) {
  const std::int64_t n = task.columns;
  for (std::int64_t row = first; row < last; ++row) {
    const T* x = task.input + row * n;
    T* y = task.output + row * n;
    float mean = 0;
    if (task.kind == Norm::layer) {
      Vec total{};
      for (std::int64_t i = 0; i < n; i += lanes) total += load_at(x + i, n - i);
      mean = sum(total) / static_cast<float>(n);
    }
    Vec squares{};
    for (std::int64_t i = 0; i < n; i += lanes) {
      Vec d = load_at(x + i, n - i) - mean;
      if (n - i < lanes)  // padding is not a part of the row
        for (std::int64_t lane = n - i; lane < lanes; ++lane) d[lane] = 0;
      squares += d * d;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + task.epsilon);
    const float more = task.kind == Norm::rms1p ? 1 : 0;
    for (std::int64_t i = 0; i < n; i += lanes) {
      Vec value = (load_at(x + i, n - i) - mean) * scale;
      if (task.weight) value *= load_at(task.weight + i, n - i) + more;
      if (task.bias) value += load_at(task.bias + i, n - i);
      store_at(y + i, value, n - i);
    }
  }
}

template <class T>
void rotate(const RotaryTask<T>& task, std::int64_t first, std::int64_t last) {
  for (std::int64_t token = first; token < last; ++token) {
    const float* cosine = task.waves + token * 2 * task.pairs;
    const float* sine = cosine + task.pairs;
    for (std::int64_t head = 0; head < task.head_count; ++head) {
      T* a = task.heads + (token * task.head_count + head) * task.head_dim;
      T* b = a + task.pairs;
      for (std::int64_t i = 0; i < task.pairs; i += lanes) {
        const std::int64_t count = task.pairs - i;
        const Vec x = load_at(a + i, count), y = load_at(b + i, count);
        const Vec c = load_at(cosine + i, count), s = load_at(sine + i, count);
        store_at(a + i, x * c - y * s, count);
        store_at(b + i, y * c + x * s, count);
      }
    }
  }
}

[[gnu::always_inline]] inline Vec activation_of(const Activation& kind, Vec x) {
  switch (kind.kind) {
    case Activation::silu: return x / (1.0f + exponential(-x));
    case Activation::gelu_tanh: {  // tanh(u) = 1 - 2 / (e^2u + 1)
      const Vec u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
      return x * (1.0f - 1.0f / (exponential(2.0f * u) + 1.0f));
    }
    case Activation::gelu: {
      for (int i = 0; i < lanes; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.7071067811865476f));
      return x;
    }
    case Activation::relu: return x > splat(0) ? x : splat(0);
    case Activation::swiglu: {
      const Vec limit = splat(static_cast<float>(kind.limit)), least = x > limit ? limit : x;
      return least / (1.0f + exponential(-static_cast<float>(kind.slope) * least));
    }
  }
  return x;
}

// What the activation's value is multiplied by.
[[gnu::always_inline]] inline Vec factor_of(const Activation& kind, Vec x) {
  if (kind.kind != Activation::swiglu) return x;
  const Vec limit = splat(static_cast<float>(kind.limit)), least = x > limit ? limit : x;
  return (least < -limit ? -limit : least) + 1.0f;
}

template <class T>
void activate(Activation kind, T* values, const T* factors, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; i += lanes) {
    Vec value = activation_of(kind, load_at(values + i, last - i));
    if (factors) value *= factor_of(kind, load_at(factors + i, last - i));
    store_at(values + i, value, last - i);
  }
}

template <class T>
void add(T* total, const T* terms, const T* bias, std::int64_t columns, std::int64_t first, std::int64_t last) {
  if (!bias) {
    for (std::int64_t i = first; i < last; i += lanes)
      store_at(total + i, load_at(total + i, last - i) + load_at(terms + i, last - i), last - i);
    return;
  }
  for (std::int64_t i = first; i < last; ++i)
    put(total + i, to_float(total[i]) + (to_float(terms[i]) + to_float(bias[i % columns])));
}

template <class W>
inline constexpr Product<ActivationOf<W>> dense_product{prepared_bytes<W>,
                                                        prepare_input<W>,
                                                        1,
                                                        multiply<W, ActivationOf<W>>,
                                                        multiply<W, float>,
                                                        0,
                                                        tile_rows(tile_tokens),
                                                        tile_tokens,
                                                        Dot<W>::arithmetic};

template <class T>
const Product<T>* product_of(DType weights) {
  if constexpr (std::is_same_v<T, float>)
    return weights == DType::fp32   ? &dense_product<float>
           : weights == DType::fp16 ? &dense_product<Fp16>
                                    : quantised_product_of(weights);
#ifdef MOTLEY_AMX
  else
    return weights == DType::bf16 ? &tiled_product : nullptr;
#else
  else
    return weights == DType::bf16 ? &dense_product<Bf16> : nullptr;
#endif
}

template <class T>
const CpuKernels<T>& kernels() {
  static constexpr CpuKernels<T> table{
      instructions,    product_of<T>,          norm<T>,     rotate<T>,     activate<T>, add<T>, attend<T, float>,
      attend<T, Bf16>, attend<T, std::int8_t>, convolve<T>, gated_delta<T>};
  return table;
}
