// The operations on a CPU: the kernels of cpu_kernels.hpp, over the threads that at::set_num_threads() allows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/cpu/weight_panels.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

// Below this many elements a loop stays on one thread: starting the others would take longer.
constexpr std::int64_t parallel_elements = 16384;

// Inputs of this many tokens are prepared at once, and the weights are read once for them: enough to be bound by
// arithmetic, and few enough for the second-level cache.
constexpr std::int64_t tokens_at_once = 96;

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

// Pieces [0, count), each to the next thread that is free: other programs may slow one down at any time.
template <class Step>
void parallel_pieces(std::int64_t count, const Step& step) {
  std::atomic<std::int64_t> next{0};
  at::parallel_for(0, std::min<std::int64_t>(count, at::get_num_threads()), 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t i = next++; i < count; i = next++) step(i);
  });
}

// Rows of a matrix that a thread takes at a time: a few pieces each, unless they become too small.
std::int64_t rows_of_piece(std::int64_t rows, std::int64_t work_of_row) {
  constexpr std::int64_t unit = 16;  // what kernels take at a time divides it
  const std::int64_t wanted =
      std::max(rows / (4 * at::get_num_threads()), parallel_elements / std::max<std::int64_t>(work_of_row, 1));
  return (wanted / unit + 1) * unit;
}

// Whether quantised weights meet inputs as they are, not rounded to 8 bits: slow, to tell what the rounding costs.
bool exact_inputs() {
  static const bool exact = [] {
    const char* named = std::getenv("MOTLEY_ACTIVATIONS");
    const std::string_view type = named == nullptr || *named == '\0' ? "int8" : named;
    if (type != "int8" && type != "fp32")
      throw input_error(fmt::format("MOTLEY_ACTIVATIONS is {}: quantised weights meet int8 or fp32", type),
                        "unset it, or choose int8 or fp32");
    return type == "fp32";
  }();
  return exact;
}

const std::byte* bytes_of_row(const WeightMatrix& weight, std::int64_t row) {
  return static_cast<const std::byte*>(weight.values.const_data_ptr()) +
         row * weight.values.stride(0) * weight.values.element_size();
}

// Of the values as they are held.
DType type_of(const WeightMatrix& weight) {
  if (weight.values.scalar_type() == at::kByte) return weight.type;
  return weight.values.scalar_type() == at::kBFloat16 ? DType::bf16 : DType::fp32;
}

// A row as it lies in a file.
void copy_row(const WeightMatrix& weight, std::int64_t row, std::byte* to) {
  const std::int64_t bytes = weight.values.size(1) * weight.values.element_size();
  if (weight.panel == 0) {
    std::copy_n(bytes_of_row(weight, row), bytes, to);
    return;
  }
  const std::int64_t first = row / weight.panel * weight.panel,
                     rows = std::min(weight.panel, weight.values.size(0) - first);
  row_of_panel(type_of(weight), bytes_of_row(weight, first), rows, bytes, row - first, to);
}

// A row of a quantised matrix.
void dequantise_one(const WeightMatrix& weight, std::int64_t row, float* out) {
  const std::int64_t width = weight.skipped + weight.inputs;
  thread_local std::vector<std::byte> bytes;
  thread_local std::vector<float> values;
  bytes.resize(static_cast<std::size_t>(weight.values.size(1)));
  values.resize(static_cast<std::size_t>(width));
  copy_row(weight, row, bytes.data());
  dequantise_row(weight.type, bytes.data(), width, values.data());
  std::copy_n(values.data() + weight.skipped, weight.inputs, out);
}

// Rows [first, last) of a quantised matrix as fp32, times inputs that were prepared for fp32.
void multiply_exactly(const WeightMatrix& weight, LinearTask<float> task, std::int64_t first, std::int64_t last) {
  thread_local std::vector<float> rows;
  rows.resize(static_cast<std::size_t>((last - first) * weight.inputs));
  for (std::int64_t row = first; row < last; ++row)
    dequantise_one(weight, row, rows.data() + (row - first) * weight.inputs);
  task.weight = reinterpret_cast<const std::byte*>(rows.data());
  task.output = static_cast<float*>(task.output) + first;
  if (task.bias != nullptr) task.bias += first;
  task.outputs = last - first;
  cpu_kernels<float>().product(DType::fp32)->multiply(task, 0, task.outputs);
}

// A product, as the kernels are asked for it.
template <class T>
struct Linear {
  Linear(Tensor& out_, const WeightMatrix& weight_, const Tensor& bias_) : out(out_), weight(weight_), bias(bias_) {
    const bool quantised = weight.values.scalar_type() == at::kByte;
    exact = quantised && exact_inputs();
    const DType dense = std::is_same_v<T, float> ? DType::fp32 : DType::bf16;
    product = cpu_kernels<T>().product(quantised && !exact ? weight.type : dense);
    skipped = quantised && !exact ? weight.skipped : 0;
    MOTLEY_CHECK(product != nullptr && (exact || weight.panel == product->panel));
    MOTLEY_CHECK(weight.values.is_contiguous() && out.stride(1) == 1);
  }
  Tensor& out;
  const WeightMatrix& weight;
  const Tensor& bias;
  const Product<T>* product = nullptr;
  bool exact = false;  // quantised weights that meet inputs which are not rounded
  std::int64_t skipped = 0;
  bool takes_input_of(const Linear& other) const {
    return product->prepare == other.product->prepare && skipped == other.skipped;
  }
};

// Tokens [token, token + tokens) of an input as the product takes them, into `prepared`; returns the bytes of a token.
template <class T>
std::int64_t prepare_input(const Linear<T>& linear, const Tensor& input, std::int64_t token, std::int64_t tokens,
                           std::vector<std::byte>& prepared) {
  const std::int64_t inputs = input.size(1), stride = input.stride(0), together = linear.product->together;
  const std::int64_t bytes = linear.product->prepared_bytes(linear.skipped + inputs);
  prepared.resize(static_cast<std::size_t>(tokens * bytes));
  std::byte* to = prepared.data();
  const T* from = data_of<T>(input) + token * stride;
  parallel_rows((tokens + together - 1) / together, together * inputs, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first * together; t < std::min(last * together, tokens); t += together)
      linear.product->prepare(from + t * stride, stride, std::min(together, tokens - t), inputs, linear.skipped,
                              to + t * bytes);
  });
  return bytes;
}

// Products that take the same prepared input: threads share the rows of them all.
template <class T>
void multiply_all(std::span<const Linear<T>> linears, const std::vector<std::byte>& prepared, std::int64_t input_bytes,
                  std::int64_t inputs, std::int64_t token, std::int64_t tokens) {
  struct Piece {
    const Linear<T>* linear;
    std::int64_t first, last;
  };
  thread_local std::vector<Piece> pieces;  // of this thread: for the others a reference goes into the lambda
  pieces.clear();
  for (const Linear<T>& linear : linears) {
    const std::int64_t rows = linear.weight.values.size(0), at_once = rows_of_piece(rows, inputs * tokens);
    for (std::int64_t row = 0; row < rows; row += at_once)
      pieces.push_back({&linear, row, std::min(row + at_once, rows)});
  }
  parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&, &all = pieces](std::int64_t i) {
    const auto& [linear, first, last] = all[static_cast<std::size_t>(i)];
    const Tensor& out = linear->out;
    const LinearTask<T> task{
        prepared.data(),
        input_bytes,
        bytes_of_row(linear->weight, 0),
        data_of<T>(linear->bias),
        static_cast<std::byte*>(out.mutable_data_ptr()) + token * out.stride(0) * out.element_size(),
        out.stride(0),
        tokens,
        linear->skipped + inputs,
        linear->weight.values.size(0)};
    if constexpr (std::is_same_v<T, float>)
      if (linear->exact) return multiply_exactly(linear->weight, task, first, last);
    const Product<T>& product = *linear->product;
    (out.scalar_type() == at::kFloat ? product.multiply_fp32 : product.multiply)(task, first, last);
  });
}

template <class T>
void run_linears(std::span<const Linear<T>> linears, const Tensor& input) {
  thread_local std::vector<std::byte> prepared;
  for (std::int64_t token = 0; token < input.size(0); token += tokens_at_once) {
    const std::int64_t tokens = std::min(tokens_at_once, input.size(0) - token);
    for (std::size_t first = 0, last = 0; first < linears.size(); first = last) {
      while (last < linears.size() && linears[last].takes_input_of(linears[first])) ++last;
      const std::int64_t bytes = prepare_input(linears[first], input, token, tokens, prepared);
      multiply_all(linears.subspan(first, last - first), prepared, bytes, input.size(1), token, tokens);
    }
  }
}

// Cosines and sines for positions [T]: [T][2][pairs], until the next call by this thread. Each layer of a step asks for
// the same, and those of the last call are kept.
const float* waves_of(const Tensor& positions, const RotaryFrequencies& frequencies) {
  thread_local struct {
    std::vector<std::int64_t> positions;
    RotaryFrequencies frequencies;
    std::vector<float> waves;
  } last;
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
              cache.block_tokens(), shape.window, static_cast<float>(shape.scale)},
             part.kv_head, part.first, part.last);
    }
  });
}

class CpuOps final : public Ops {
 public:
  CpuOps() { exact_inputs(); }  // a wrong setting is refused before any weights are read

  // Matrices are laid in panels where their products read them so.
  void prepare(WeightMatrix& weight) const override {
    if (weight.scaled()) return;
    MOTLEY_CHECK(weight.panel == 0 && weight.values.is_contiguous());
    const DType type = type_of(weight);
    weight.panel =
        type == DType::bf16 ? cpu_kernels<Bf16>().product(type)->panel : cpu_kernels<float>().product(type)->panel;
    if (weight.panel == 0) return;
    const std::int64_t rows = weight.values.size(0), row_bytes = weight.values.size(1) * weight.values.element_size();
    at::parallel_for(0, (rows + weight.panel - 1) / weight.panel, 16, [&](std::int64_t first, std::int64_t last) {
      std::vector<std::byte> as_read(static_cast<std::size_t>(weight.panel * row_bytes));
      for (std::int64_t row = first * weight.panel; row < std::min(last * weight.panel, rows); row += weight.panel) {
        const std::int64_t count = std::min(weight.panel, rows - row);
        std::byte* panel = mutable_data_of<std::byte>(weight.values) + row * row_bytes;
        std::copy_n(panel, count * row_bytes, as_read.data());
        lay_panel(type, as_read.data(), count, row_bytes, panel);
      }
    });
  }

  void linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const override {
    if (input.size(0) == 0) return;
    if (weight.scaled()) return generic_ops().linear(out, input, weight, bias);
    MOTLEY_CHECK(input.stride(1) == 1);
    with_type(input, [&]<class T>(T) { run_linears<T>(std::array{Linear<T>(out, weight, bias)}, input); });
  }

  void linears(std::initializer_list<LinearCall> calls, const Tensor& input) const override {
    if (input.size(0) == 0) return;
    if (std::ranges::any_of(calls, [](const LinearCall& call) { return call.linear.weight.scaled(); }))
      return Ops::linears(calls, input);
    MOTLEY_CHECK(input.stride(1) == 1);
    with_type(input, [&]<class T>(T) {
      std::vector<Linear<T>> products;
      for (const LinearCall& call : calls) products.emplace_back(call.out, call.linear.weight, call.linear.bias);
      run_linears<T>(products, input);
    });
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
          if (table.values.scalar_type() == at::kByte) {
            dequantise_one(table, row, to);
            continue;
          }
        copy_row(table, row, reinterpret_cast<std::byte*>(to));
      }
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
