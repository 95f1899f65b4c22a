// The operations on a CPU: the kernels of cpu_kernels.hpp, over the threads that at::set_num_threads() allows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "motley/engine/cpu_kernels.hpp"
#include "motley/engine/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

// Below this many elements a loop stays on one thread: starting the others would take longer.
constexpr std::int64_t parallel_elements = 16384;

// Up to this many tokens the weights' bytes decide, and our own product reads them at the memory's speed; beyond, the
// arithmetic does, and the vendors' libraries are faster.
constexpr std::int64_t few_tokens = 64;

template <class T>
const T* data_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <class T>
T* mutable_data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// Calls step(T{}) with the element type of the tensor.
template <class Step>
void with_type(const Tensor& tensor, const Step& step) {
  if (tensor.scalar_type() == at::kFloat) return step(float{});
  MOTLEY_CHECK(tensor.scalar_type() == at::kBFloat16);
  step(Bf16{});
}

// Rows of `columns` elements over the threads.
template <class Step>
void parallel_rows(std::int64_t rows, std::int64_t columns, const Step& step) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, parallel_elements / std::max<std::int64_t>(columns, 1)), step);
}

template <class T>
void run_linear(Tensor& out, const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const LinearTask<T> task{data_of<T>(input),      input.stride(0), data_of<T>(weight), data_of<T>(bias),
                           out.mutable_data_ptr(), out.stride(0),   input.size(0),      input.size(1)};
  const CpuKernels<T>& kernels = cpu_kernels<T>();
  const auto product = out.scalar_type() == at::kFloat ? kernels.linear_fp32 : kernels.linear;
  constexpr std::int64_t panel = 8;  // rows of the weight that the kernel takes at a time
  const std::int64_t rows = weight.size(0);
  parallel_rows((rows + panel - 1) / panel, panel * task.inputs, [&](std::int64_t first, std::int64_t last) {
    product(task, first * panel, std::min(last * panel, rows));
  });
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
    else
      return cpu_kernels<T>().attend_bf16;
  }();
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const Part& part = parts[static_cast<std::size_t>(i)];
      const SequenceRows& rows = sequences[part.sequence];
      const std::int64_t offset = rows.first_row * query.stride(0);
      attend({data_of<T>(query) + offset, mutable_data_of<T>(out) + offset, data_of<C>(cache.keys),
              data_of<C>(cache.values), rows.blocks.data(), rows.position, rows.count, query.size(1), kv_heads,
              query.size(2), cache.block_tokens(), shape.window, static_cast<float>(shape.scale)},
             part.kv_head, part.first, part.last);
    }
  });
}

class CpuOps final : public Ops {
 public:
  void linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const override {
    MOTLEY_CHECK(input.stride(1) == 1 && weight.values.is_contiguous() && out.stride(1) == 1);
    if (input.size(0) == 0) return;
    if (weight.scaled() || is_quantised(weight.type) ||
        (input.size(0) > few_tokens && out.scalar_type() == input.scalar_type()))
      return generic_ops().linear(out, input, weight, bias);
    with_type(weight.values, [&]<class T>(T) { run_linear<T>(out, input, weight.values, bias); });
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
      const RotaryTask<T> task{mutable_data_of<T>(heads),
                               heads.size(1),
                               heads.size(2),
                               positions.const_data_ptr<std::int64_t>(),
                               static_cast<std::int64_t>(frequencies.inverse_frequencies.size()),
                               frequencies.inverse_frequencies.data(),
                               frequencies.amplitude};
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

  void look_up(Tensor& out, const Tensor& tokens, const WeightMatrix& table, const Span& rows) const override {
    if (table.scaled() || is_quantised(table.type)) return generic_ops().look_up(out, tokens, table, rows);
    with_type(out, [&]<class T>(T) {
      const std::int64_t columns = out.size(1);
      const auto* ids = tokens.const_data_ptr<std::int64_t>();
      for (std::int64_t t = 0; t < out.size(0); ++t) {
        T* to = mutable_data_of<T>(out) + t * columns;
        if (ids[t] >= rows.first && ids[t] < rows.end)
          std::copy_n(data_of<T>(table.values) + (ids[t] - rows.first) * columns, columns, to);
        else
          std::fill_n(to, columns, T{});
      }
    });
  }

  void attend(Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value, const LayerCache& cache,
              const std::vector<SequenceRows>& sequences, const AttentionShape& shape) const override {
    MOTLEY_CHECK(out.is_contiguous() && query.is_contiguous() && key.is_contiguous() && value.is_contiguous());
    with_type(query, [&]<class T>(T) {
      with_type(cache.keys, [&]<class C>(C) {
        for (const SequenceRows& rows : sequences) write_rows<T, C>(cache, key, value, rows);
        run_attend<T, C>(out, query, cache, sequences, shape);
      });
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
        C* keys = mutable_data_of<C>(cache.keys) + (block * heads + head) * dim * block_tokens + inside;
        C* values = mutable_data_of<C>(cache.values) + ((block * heads + head) * block_tokens + inside) * dim;
        for (std::int64_t d = 0; d < dim; ++d) {
          convert(from_key[head * dim + d], keys[d * block_tokens]);
          convert(from_value[head * dim + d], values[d]);
        }
      }
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
