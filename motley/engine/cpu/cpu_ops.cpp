// The operations on a CPU: the kernels of cpu_kernels.hpp, over the threads that at::set_num_threads() allows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/cpu/cpu_products.hpp"
#include "motley/engine/cpu/cpu_tensors.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

// Cosines and sines for positions [T]: [T][2][pairs], until the next call by this thread. Each layer of a step asks for
// the same, by one of a few rules, and those of the last calls are kept.
const float* waves_of(const Tensor& positions, const RotaryFrequencies& frequencies) {
  struct Waves {
    std::vector<std::int64_t> positions;
    RotaryFrequencies frequencies;
    std::vector<float> waves;
  };
  constexpr std::size_t most_kept = 4;
  thread_local std::array<Waves, most_kept> kept;
  thread_local std::size_t next = 0;
  auto found = std::ranges::find(kept, frequencies, &Waves::frequencies);
  if (found == kept.end()) found = kept.begin() + static_cast<std::ptrdiff_t>(next++ % most_kept);
  Waves& last = *found;
  const std::span<const std::int64_t> asked{positions.const_data_ptr<std::int64_t>(),
                                            static_cast<std::size_t>(positions.numel())};
  if (std::ranges::equal(asked, last.positions) && frequencies == last.frequencies) return last.waves.data();
  last.positions.assign(asked.begin(), asked.end());
  last.frequencies = frequencies;
  const auto pairs = static_cast<std::int64_t>(frequencies.inverse_frequencies.size());
  last.waves.resize(asked.size() * 2 * frequencies.inverse_frequencies.size());
  constexpr std::int64_t work = 16;  // of a pair, where an element elsewhere is 1
  parallel_rows(positions.numel(), work * pairs, [&, waves = last.waves.data()](std::int64_t first, std::int64_t end) {
    for (std::int64_t token = first; token < end; ++token)
      for (std::int64_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(asked[static_cast<std::size_t>(token)]) *
                            frequencies.inverse_frequencies[static_cast<std::size_t>(i)];
        waves[(2 * token) * pairs + i] = std::cos(angle) * frequencies.amplitude;
        waves[(2 * token + 1) * pairs + i] = std::sin(angle) * frequencies.amplitude;
      }
  });
  return last.waves.data();
}

template <class T, class C>
void run_attend(Tensor& out, const Tensor& query, const LayerCache& cache, const std::vector<SequenceRows>& sequences,
                const AttentionShape& shape) {
  struct Part {
    std::size_t sequence;
    std::int64_t kv_head, first, last;
  };
  constexpr std::int64_t rows_at_once = 16;
  const std::int64_t kv_heads = cache.values.size(1);
  std::vector<Part> parts;  // by KV head first: cut anywhere, threads get early (cheap) and late (dear) rows alike
  for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head)
    for (std::size_t s = 0; s < sequences.size(); ++s)
      for (std::int64_t row = 0; row < sequences[s].count; row += rows_at_once)
        parts.push_back({s, kv_head, row, std::min(row + rows_at_once, sequences[s].count)});
  const auto attend = [] {
    if constexpr (std::is_same_v<C, float>)
      return cpu_kernels<T>().attend_fp32;
    else if constexpr (std::is_same_v<C, Bf16>)
      return cpu_kernels<T>().attend_bf16;
    else
      return cpu_kernels<T>().attend_int8;
  }();
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const Part& part = parts[static_cast<std::size_t>(i)];
      const SequenceRows& rows = sequences[part.sequence];
      const std::int64_t offset = rows.first_row * query.stride(0);
      attend({data_of<T>(query) + offset, mutable_data_of<T>(out) + offset, data_of<C>(cache.keys),
              data_of<C>(cache.values), data_of<Fp16>(cache.key_scales), data_of<Fp16>(cache.value_scales),
              rows.blocks.data(), rows.position, rows.count, query.size(1), kv_heads, query.size(2),
              cache.block_tokens(), shape.window, static_cast<float>(shape.scale), data_of<T>(shape.sinks)},
             part.kv_head, part.first, part.last);
    }
  });
}

// values = their softmax.
void softmax(std::span<float> values) {
  const float highest = std::ranges::max(values);
  float sum = 0;
  for (float& value : values) sum += value = std::exp(value - highest);
  for (float& value : values) value /= sum;
}

// As Ops::route(), of one row.
void route_row(std::span<const float> scores, const float* selection_bias, const Experts& experts, std::int64_t* ids,
               std::span<float> shares) {
  thread_local std::vector<float> compared;
  thread_local std::vector<bool> taken;
  compared.assign(scores.begin(), scores.end());
  taken.assign(scores.size(), false);
  for (std::size_t i = 0; selection_bias != nullptr && i < compared.size(); ++i) compared[i] += selection_bias[i];
  for (std::int64_t i = 0; i < experts.active; ++i) {
    std::size_t best = compared.size();
    for (std::size_t expert = 0; expert < compared.size(); ++expert)
      if (!taken[expert] && (best == compared.size() || compared[expert] > compared[best])) best = expert;
    taken[best] = true;
    ids[i] = static_cast<std::int64_t>(best);
  }
  std::sort(ids, ids + experts.active);
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = scores[static_cast<std::size_t>(ids[i])];
  const RouterRule& rule = experts.router;
  if (rule.score == RouterScore::softmax_of_chosen) softmax(shares);
  float divisor = 1;
  if (rule.normalise) divisor = std::accumulate(shares.begin(), shares.end(), 0.0F) + static_cast<float>(rule.epsilon);
  for (float& share : shares) share = share / divisor * static_cast<float>(rule.factor);
}

class CpuOps final : public Ops {
 public:
  CpuOps() { check_activations(); }  // a wrong setting is refused before any weights are read

  void prepare(WeightMatrix& weight) const override {
    if (!weight.scaled()) lay_panels(weight);
  }

  void linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const override {
    if (input.size(0) == 0) return;
    if (weight.scaled()) return generic_ops().linear(out, input, weight, bias);
    multiply(std::array{CpuProduct{out, weight, bias}}, input);
  }

  void linears(std::initializer_list<LinearCall> calls, const Tensor& input) const override {
    if (input.size(0) == 0) return;
    if (std::ranges::any_of(calls, [](const LinearCall& call) { return call.linear.weight.scaled(); }))
      return Ops::linears(calls, input);
    std::vector<CpuProduct> products;
    for (const LinearCall& call : calls) products.push_back({call.out, call.linear.weight, call.linear.bias});
    multiply(products, input);
  }

  // Value by value: a vector's tail may round unlike its body, and a token's scores may not depend on its row.
  void score(RouterScore kind, Tensor& logits) const override {
    if (kind == RouterScore::softmax_of_chosen) return;
    MOTLEY_CHECK(logits.scalar_type() == at::kFloat && logits.is_contiguous());
    const auto count = static_cast<std::size_t>(logits.size(1));
    for (std::int64_t row = 0; row < logits.size(0); ++row) {
      const std::span values(mutable_data_of<float>(logits) + row * logits.stride(0), count);
      if (kind == RouterScore::softmax)
        softmax(values);
      else
        for (float& value : values) value = 1 / (1 + std::exp(-value));
    }
  }

  void route(Tensor& ids, Tensor& shares, const Tensor& scores, const Tensor& selection_bias,
             const Experts& experts) const override {
    MOTLEY_CHECK(scores.scalar_type() == at::kFloat && scores.stride(1) == 1 && ids.stride(1) == 1);
    const float* const bias = selection_bias.defined() ? data_of<float>(selection_bias) : nullptr;
    for (std::int64_t row = 0; row < scores.size(0); ++row)
      route_row({data_of<float>(scores) + row * scores.stride(0), static_cast<std::size_t>(scores.size(1))}, bias,
                experts, mutable_data_of<std::int64_t>(ids) + row * ids.stride(0),
                {mutable_data_of<float>(shares) + row * shares.stride(0), static_cast<std::size_t>(experts.active)});
  }

  void mix_experts(Activation kind, Tensor& out, Tensor& gates, Tensor& others, const Tensor& input, const Tensor& ids,
                   const Tensor& shares, const ExpertWeights& experts) const override {
    if (experts.down.front().weight.scaled())
      return Ops::mix_experts(kind, out, gates, others, input, ids, shares, experts);
    multiply_experts(kind, out, gates, others, input, ids, shares, experts);
  }

  void norm(Norm kind, Tensor& out, const Tensor& input, const NormWeights& weights, double epsilon) const override {
    MOTLEY_CHECK(input.is_contiguous() && out.is_contiguous());
    with_type(out, [&]<class T>(T) {
      const std::int64_t columns = input.size(-1);
      const NormTask<T> task{kind,
                             data_of<T>(input),
                             mutable_data_of<T>(out),
                             data_of<T>(weights.weight),
                             data_of<T>(weights.bias),
                             columns,
                             static_cast<float>(epsilon)};
      parallel_rows(input.numel() / columns, columns,
                    [&](std::int64_t first, std::int64_t last) { cpu_kernels<T>().norm(task, first, last); });
    });
  }

  void rotate(Tensor& heads, const Tensor& positions, const RotaryFrequencies& frequencies) const override {
    MOTLEY_CHECK(heads.is_contiguous());
    with_type(heads, [&]<class T>(T) {
      const RotaryTask<T> task{mutable_data_of<T>(heads), heads.size(1), heads.size(2),
                               static_cast<std::int64_t>(frequencies.inverse_frequencies.size()),
                               waves_of(positions, frequencies)};
      parallel_rows(heads.size(0), heads.stride(0),
                    [&](std::int64_t first, std::int64_t last) { cpu_kernels<T>().rotate(task, first, last); });
    });
  }

  void activate(Activation kind, Tensor& values, const Tensor& factors) const override {
    MOTLEY_CHECK(values.is_contiguous());
    with_type(values, [&]<class T>(T) {
      at::parallel_for(0, values.numel(), parallel_elements, [&](std::int64_t first, std::int64_t last) {
        cpu_kernels<T>().activate(kind, mutable_data_of<T>(values), data_of<T>(factors), first, last);
      });
    });
  }

  void add(Tensor& sum, const Tensor& terms, const Tensor& bias) const override {
    MOTLEY_CHECK(sum.is_contiguous() && terms.is_contiguous());
    with_type(sum, [&]<class T>(T) {
      at::parallel_for(0, sum.numel(), parallel_elements, [&](std::int64_t first, std::int64_t last) {
        cpu_kernels<T>().add(mutable_data_of<T>(sum), data_of<T>(terms), data_of<T>(bias), sum.size(1), first, last);
      });
    });
  }

  void embedding(Tensor& out, const Tensor& tokens, const WeightMatrix& table, const Span& rows) const override {
    if (table.scaled()) return generic_ops().embedding(out, tokens, table, rows);
    with_type(out, [&]<class T>(T) {
      const std::int64_t columns = out.size(1);
      const auto* ids = tokens.const_data_ptr<std::int64_t>();
      for (std::int64_t t = 0; t < out.size(0); ++t) {
        T* to = mutable_data_of<T>(out) + t * columns;
        const std::int64_t row = ids[t] - rows.first;
        if (row < 0 || ids[t] >= rows.end) {
          std::fill_n(to, columns, T{});
          continue;
        }
        if constexpr (std::is_same_v<T, float>)
          if (table.values.scalar_type() != at::kFloat) {
            dequantise_one(table, row, to);
            continue;
          }
        copy_row(table, row, reinterpret_cast<std::byte*>(to));
      }
    });
  }

  void convolve(Tensor& values, const Tensor& weight, const Tensor& kept,
                const std::vector<SequenceRows>& sequences) const override {
    MOTLEY_CHECK(values.stride(1) == 1 && weight.is_contiguous());
    with_type(values, [&]<class T>(T) {
      for (const SequenceRows& rows : sequences) {
        const Tensor own = begun(kept, rows);
        MOTLEY_CHECK(own.is_contiguous());
        const ConvolutionTask<T> task{mutable_data_of<T>(values) + rows.first_row * values.stride(0),
                                      values.stride(0),
                                      rows.count,
                                      data_of<float>(weight),
                                      mutable_data_of<float>(own),
                                      weight.size(1)};
        parallel_rows(weight.size(0), rows.count * weight.size(1),
                      [&](std::int64_t first, std::int64_t last) { cpu_kernels<T>().convolve(task, first, last); });
      }
    });
  }

  void gated_delta(Tensor& out, const DeltaHeads& heads, const Tensor& states,
                   const std::vector<SequenceRows>& sequences) const override {
    const Tensor &value = heads.value, &key = heads.key;
    MOTLEY_CHECK(heads.query.strides() == key.strides() && key.stride(2) == 1 && value.stride(2) == 1);
    MOTLEY_CHECK(out.stride(2) == 1 && states.is_contiguous());
    const Tensor decay = (-heads.decay.exp() * at::softplus(heads.alpha + heads.step)).exp().contiguous(),
                 beta = heads.beta.sigmoid().contiguous();
    const std::int64_t count = value.size(1), each = count / key.size(1);
    for (const SequenceRows& rows : sequences) begun(states, rows);
    with_type(out, [&]<class T>(T) {
      at::parallel_for(0, std::ssize(sequences) * count, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const SequenceRows& rows = sequences[static_cast<std::size_t>(i / count)];
          const std::int64_t head = i % count, key_head = heads.tiled ? head % key.size(1) : head / each;
          const auto of = [&](const Tensor& tensor, std::int64_t at) {
            return data_of<T>(tensor) + rows.first_row * tensor.stride(0) + at * tensor.stride(1);
          };
          const std::int64_t rate = rows.first_row * count + head;
          cpu_kernels<T>().gated_delta(
              {.query = of(heads.query, key_head),
               .key = of(key, key_head),
               .key_stride = key.stride(0),
               .value = of(value, head),
               .value_stride = value.stride(0),
               .decay = data_of<float>(decay) + rate,
               .beta = data_of<float>(beta) + rate,
               .rate_stride = count,
               .state = mutable_data_of<float>(states) + (rows.slot * count + head) * states.stride(1),
               .output = const_cast<T*>(of(out, head)),
               .output_stride = out.stride(0),
               .rows = rows.count,
               .key_dim = key.size(2),
               .value_dim = value.size(2)});
        }
      });
    });
  }

  void attend(Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value, const LayerCache& cache,
              const std::vector<SequenceRows>& sequences, const AttentionShape& shape) const override {
    MOTLEY_CHECK(out.is_contiguous() && query.is_contiguous() && key.is_contiguous() && value.is_contiguous());
    with_type(query, [&]<class T>(T) {
      const auto attend = [&]<class C>(C) {
        for (const SequenceRows& rows : sequences) write_rows<T, C>(cache, key, value, rows);
        run_attend<T, C>(out, query, cache, sequences, shape);
      };
      if (cache.key_scales.defined()) return attend(std::int8_t{});
      with_type(cache.keys, attend);
    });
  }

 private:
  template <class T, class C>
  static void write_rows(const LayerCache& cache, const Tensor& key, const Tensor& value, const SequenceRows& rows) {
    const std::int64_t heads = key.size(1), dim = key.size(2), block_tokens = cache.block_tokens();
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const std::int64_t position = rows.position + i, inside = position % block_tokens;
      const std::int64_t block = rows.blocks[static_cast<std::size_t>(position / block_tokens)];
      const T* from_key = data_of<T>(key) + (rows.first_row + i) * heads * dim;
      const T* from_value = data_of<T>(value) + (rows.first_row + i) * heads * dim;
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t first = (block * heads + head) * dim * block_tokens;
        C* keys = mutable_data_of<C>(cache.keys) + first + inside;
        C* values = mutable_data_of<C>(cache.values) + first + inside * dim;
        if constexpr (std::is_same_v<C, std::int8_t>) {
          const std::int64_t first_scale = first / kv_scale_values + inside;
          quantise(from_key + head * dim, dim, keys, block_tokens,
                   mutable_data_of<Fp16>(cache.key_scales) + first_scale, block_tokens);
          quantise(from_value + head * dim, dim, values, 1, mutable_data_of<Fp16>(cache.value_scales) + first_scale,
                   block_tokens);
        } else {
          for (std::int64_t d = 0; d < dim; ++d) {
            convert(from_key[head * dim + d], keys[d * block_tokens]);
            convert(from_value[head * dim + d], values[d]);
          }
        }
      }
    }
  }
  // What the sequence's slot keeps; zeros where the sequence begins.
  static Tensor begun(const Tensor& kept, const SequenceRows& rows) {
    Tensor own = kept[rows.slot];
    if (rows.position == 0) own.zero_();
    return own;
  }
  // A token's head as q8_0: its elements and their scales are so far apart.
  template <class T>
  static void quantise(const T* from, std::int64_t dim, std::int8_t* elements, std::int64_t apart, Fp16* scales,
                       std::int64_t scales_apart) {
    for (std::int64_t first = 0; first < dim; first += kv_scale_values) {
      float wide[kv_scale_values];
      for (std::int64_t i = 0; i < kv_scale_values; ++i) convert(from[first + i], wide[i]);
      BlockQ8_0 block;
      quantise_row(DType::q8_0, wide, kv_scale_values, reinterpret_cast<std::byte*>(&block));
      scales[first / kv_scale_values * scales_apart] = {block.scale};
      for (std::int64_t i = 0; i < kv_scale_values; ++i) elements[(first + i) * apart] = block.values[i];
    }
  }
  static void convert(float from, float& to) { to = from; }
  static void convert(Bf16 from, Bf16& to) { to = from; }
  static void convert(float from, Bf16& to) { to.bits = c10::BFloat16(from).x; }
  static void convert(Bf16 from, float& to) {
    to = static_cast<float>(c10::BFloat16(from.bits, c10::BFloat16::from_bits()));
  }
};

}  // namespace

const Ops& cpu_ops() {
  static const CpuOps ops;
  return ops;
}

}  // namespace motley
