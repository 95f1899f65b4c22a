#include "motley/engine/cpu/cpu_products.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <vector>

#include "motley/base/rounding.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/cpu/cpu_tensors.hpp"
#include "motley/engine/cpu/weight_panels.hpp"

namespace motley {
namespace {

using at::Tensor;

// Inputs of this many tokens are prepared at once, and the weights are read once for them: enough to be bound by
// arithmetic, and few enough for the second-level cache.
constexpr std::int64_t tokens_at_once = 96;

// Of experts: many small ones share a start of the threads, and what is held meanwhile stays small.
constexpr std::int64_t expert_rows_at_once = 4 * tokens_at_once;

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
  switch (weight.values.scalar_type()) {
    case at::kByte: return weight.type;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::fp16;
    default: return DType::fp32;
  }
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

// A matrix and a bias, as the kernels are asked for them.
template <class T>
struct Linear {
  Linear(const WeightMatrix& weight_, const Tensor& bias_) : weight(&weight_), bias(data_of<T>(bias_)) {
    const bool quantised = weight->values.scalar_type() == at::kByte;
    exact = quantised && exact_inputs();
    product = cpu_kernels<T>().product(exact ? DType::fp32 : type_of(*weight));
    skipped = quantised && !exact ? weight->skipped : 0;
    MOTLEY_CHECK(product != nullptr && (exact || weight->panel == product->panel) && weight->values.is_contiguous());
  }
  explicit Linear(const LinearWeights& weights) : Linear(weights.weight, weights.bias) {}

  const WeightMatrix* weight;
  const T* bias;
  const Product<T>* product = nullptr;
  bool exact = false;  // quantised weights that meet inputs which are not rounded
  std::int64_t skipped = 0;
  bool takes_input_of(const Linear& other) const {
    return product->prepare == other.product->prepare && skipped == other.skipped;
  }
};

// Rows of an input, one behind the other or those that `named` says.
template <class T>
struct InputRows {
  const T* first;
  std::int64_t stride, count, width;
  const std::int64_t* named = nullptr;
  const T* at(std::int64_t row) const { return first + (named == nullptr ? row : named[row]) * stride; }
};

// Rows as a product takes them.
template <class T>
struct PreparedRows {
  InputRows<T> rows;
  const Linear<T>* linear;
  std::byte* to = nullptr;
  std::int64_t row_bytes() const { return linear->product->prepared_bytes(linear->skipped + rows.width); }
};

// All of them, into `space`.
template <class T>
void prepare_rows(std::span<PreparedRows<T>> all, std::vector<std::byte>& space) {
  struct Unit {
    const PreparedRows<T>* of;
    std::int64_t first, count;
  };
  thread_local std::vector<Unit> units;
  units.clear();
  std::int64_t bytes = 0, elements = 0;
  for (const PreparedRows<T>& one : all) bytes += one.rows.count * one.row_bytes();
  if (std::ssize(space) < bytes) space.resize(static_cast<std::size_t>(bytes));
  bytes = 0;
  for (PreparedRows<T>& one : all) {
    one.to = space.data() + bytes;
    bytes += one.rows.count * one.row_bytes();
    elements += one.rows.count * one.rows.width;
    const std::int64_t together = one.linear->product->together;
    for (std::int64_t row = 0; row < one.rows.count; row += together)
      units.push_back({&one, row, std::min(together, one.rows.count - row)});
  }
  const std::int64_t count = std::ssize(units);
  parallel_rows(count, elements / std::max<std::int64_t>(count, 1),
                [&, &of = units](std::int64_t begin, std::int64_t end) {
                  thread_local std::vector<T> gathered;
                  for (std::int64_t i = begin; i < end; ++i) {
                    const auto& [one, first, rows] = of[static_cast<std::size_t>(i)];
                    const InputRows<T>& from = one->rows;
                    const T* input = from.at(first);
                    std::int64_t stride = from.stride;
                    if (from.named != nullptr && rows > 1) {
                      gathered.resize(static_cast<std::size_t>(rows * from.width));
                      for (std::int64_t row = 0; row < rows; ++row)
                        std::copy_n(from.at(first + row), from.width, gathered.data() + row * from.width);
                      input = gathered.data();
                      stride = from.width;
                    }
                    one->linear->product->prepare(input, stride, rows, from.width, one->linear->skipped,
                                                  one->to + first * one->row_bytes());
                  }
                });
}

// A product of prepared rows.
template <class T>
struct RowsProduct {
  const Linear<T>* linear;
  LinearTask<T> task;
  bool wide;  // its output is fp32
};

template <class T, class Out>
RowsProduct<T> rows_product(const Linear<T>& linear, const PreparedRows<T>& prepared, Out* output,
                            std::int64_t output_stride, bool wide) {
  return {&linear,
          {prepared.to, prepared.row_bytes(), bytes_of_row(*linear.weight, 0), linear.bias, output, output_stride,
           prepared.rows.count, linear.skipped + prepared.rows.width, linear.weight->values.size(0)},
          wide};
}

// Threads share the rows of all matrices.
template <class T>
void multiply_all(std::span<const RowsProduct<T>> products) {
  struct Piece {
    const RowsProduct<T>* product;
    std::int64_t first, last;
  };
  thread_local std::vector<Piece> pieces;  // of this thread: for the others a reference goes into the lambda
  pieces.clear();
  for (const RowsProduct<T>& one : products) {
    const std::int64_t rows = one.task.outputs, at_once = rows_of_piece(rows, one.task.inputs * one.task.tokens);
    for (std::int64_t row = 0; row < rows; row += at_once) pieces.push_back({&one, row, std::min(row + at_once, rows)});
  }
  parallel_pieces(std::ssize(pieces), [&all = pieces](std::int64_t i) {
    const auto& [one, first, last] = all[static_cast<std::size_t>(i)];
    if constexpr (std::is_same_v<T, float>)
      if (one->linear->exact) return multiply_exactly(*one->linear->weight, one->task, first, last);
    const Product<T>& product = *one->linear->product;
    (one->wide ? product.multiply_fp32 : product.multiply)(one->task, first, last);
  });
}

// ---- one input ----

template <class T>
void multiply_by(std::span<const CpuProduct> asked, const Tensor& input) {
  thread_local std::vector<std::byte> space;
  std::vector<Linear<T>> linears;
  for (const CpuProduct& one : asked) linears.emplace_back(one.weight, one.bias);
  std::vector<RowsProduct<T>> products;
  for (std::int64_t token = 0; token < input.size(0); token += tokens_at_once) {
    const std::int64_t tokens = std::min(tokens_at_once, input.size(0) - token);
    for (std::size_t first = 0, last = 0; first < linears.size(); first = last) {
      PreparedRows<T> prepared[] = {
          {{data_of<T>(input) + token * input.stride(0), input.stride(0), tokens, input.size(1)}, &linears[first]}};
      prepare_rows<T>(prepared, space);
      products.clear();
      for (; last < linears.size() && linears[last].takes_input_of(linears[first]); ++last) {
        const Tensor& out = asked[last].out;
        products.push_back(
            rows_product(linears[last], prepared[0],
                         static_cast<std::byte*>(out.mutable_data_ptr()) + token * out.stride(0) * out.element_size(),
                         out.stride(0), out.scalar_type() == at::kFloat));
      }
      multiply_all<T>(products);
    }
  }
}

// ---- experts ----

// The places of a step's choices of the experts that are here, expert by expert and in the order of the tokens, and the
// token of each.
struct RoutedRows {
  RoutedRows(const Tensor& ids, const ExpertWeights& experts) {
    const Tensor chosen = ids.contiguous();
    const std::span<const std::int64_t> all(chosen.const_data_ptr<std::int64_t>(),
                                            static_cast<std::size_t>(chosen.numel()));
    const auto is_here = [&](std::int64_t id) {
      return id >= experts.first && id < experts.first + std::ssize(experts.down);
    };
    const auto number = [&](std::int64_t id) { return static_cast<std::size_t>(id - experts.first); };
    begins.resize(experts.down.size() + 1);
    for (const std::int64_t id : all)
      if (is_here(id)) ++begins[number(id) + 1];
    for (std::size_t expert = 1; expert < begins.size(); ++expert) begins[expert] += begins[expert - 1];
    std::vector<std::int64_t> next(begins.begin(), begins.end() - 1);
    places.resize(static_cast<std::size_t>(begins.back()));
    tokens.resize(places.size());
    for (std::size_t place = 0; place < all.size(); ++place) {
      if (!is_here(all[place])) continue;
      const auto row = static_cast<std::size_t>(next[number(all[place])]++);
      places[row] = static_cast<std::int64_t>(place);
      tokens[row] = places[row] / ids.size(1);
    }
  }
  std::vector<std::int64_t> begins;  // of each expert's rows, and where the last ends
  std::vector<std::int64_t> places, tokens;
};

// Rows of one expert that meet its matrices at once.
template <class T>
struct ExpertRows {
  std::int64_t first, count;
  Linear<T> gate, up, down;
};

// As many as are computed at once, from row `row` on.
template <class T>
std::vector<ExpertRows<T>> next_rows(const RoutedRows& routed, const ExpertWeights& experts, std::int64_t row) {
  std::vector<ExpertRows<T>> parts;
  const std::int64_t last = std::min(row + expert_rows_at_once, std::ssize(routed.places));
  auto expert = static_cast<std::size_t>(std::ranges::upper_bound(routed.begins, row) - routed.begins.begin()) - 1;
  for (; row < last; ++expert)
    for (const std::int64_t end = std::min(last, routed.begins[expert + 1]); row < end; row += parts.back().count)
      parts.push_back({row, std::min(tokens_at_once, end - row), Linear<T>(experts.gate[expert]),
                       Linear<T>(experts.up[expert]), Linear<T>(experts.down[expert])});
  return parts;
}

// sums[token] += shares x rows, row after row: the terms of a token come in the order of its experts.
void add_rows(std::span<const std::int64_t> tokens, std::span<const float> shares, const float* rows,
              std::int64_t columns, float* sums) {
  at::parallel_for(0, columns, std::max<std::int64_t>(16, parallel_elements / std::ssize(tokens)),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::size_t row = 0; row < tokens.size(); ++row) {
                       const float* from = rows + static_cast<std::int64_t>(row) * columns;
                       float* to = sums + tokens[row] * columns;
                       for (std::int64_t i = first; i < last; ++i) to[i] += shares[row] * from[i];
                     }
                   });
}

template <class T>
void mix(Activation kind, const Tensor& gates, const Tensor& others, const Tensor& input, const RoutedRows& routed,
         std::span<const float> shares, const ExpertWeights& experts, float* sums) {
  thread_local std::vector<std::byte> space;
  thread_local std::vector<float> results;
  const std::int64_t hidden = input.size(1), columns = gates.size(1);
  for (std::int64_t row = 0; row < std::ssize(routed.places);) {
    const std::vector<ExpertRows<T>> parts = next_rows<T>(routed, experts, row);
    std::vector<PreparedRows<T>> prepared;
    for (const ExpertRows<T>& part : parts) {
      const InputRows<T> own{data_of<T>(input), input.stride(0), part.count, hidden, routed.tokens.data() + part.first};
      prepared.push_back({own, &part.gate});
      if (!part.up.takes_input_of(part.gate)) prepared.push_back({own, &part.up});
    }
    prepare_rows<T>(prepared, space);
    std::vector<RowsProduct<T>> products;
    const auto rows_of = [&](const Tensor& buffer, std::int64_t first) {
      return mutable_data_of<T>(buffer) + first * columns;
    };
    constexpr bool wide = std::is_same_v<T, float>;
    for (std::size_t next = 0; const ExpertRows<T>& part : parts) {
      const PreparedRows<T>& of_gate = prepared[next++];
      const PreparedRows<T>& of_up = part.up.takes_input_of(part.gate) ? of_gate : prepared[next++];
      products.push_back(rows_product(part.gate, of_gate, rows_of(gates, part.first), columns, wide));
      products.push_back(rows_product(part.up, of_up, rows_of(others, part.first), columns, wide));
    }
    multiply_all<T>(products);

    const std::int64_t end = parts.back().first + parts.back().count;
    at::parallel_for(row * columns, end * columns, parallel_elements, [&](std::int64_t first, std::int64_t last) {
      cpu_kernels<T>().activate(kind, mutable_data_of<T>(gates), data_of<T>(others), first, last);
    });

    prepared.clear();
    products.clear();
    for (const ExpertRows<T>& part : parts)
      prepared.push_back({{rows_of(gates, part.first), columns, part.count, columns}, &part.down});
    prepare_rows<T>(prepared, space);
    if (std::ssize(results) < (end - row) * hidden) results.resize(static_cast<std::size_t>((end - row) * hidden));
    for (std::size_t i = 0; i < parts.size(); ++i)
      products.push_back(
          rows_product(parts[i].down, prepared[i], results.data() + (parts[i].first - row) * hidden, hidden, true));
    multiply_all<T>(products);

    std::vector<float> own_shares;
    for (std::int64_t i = row; i < end; ++i)
      own_shares.push_back(shares[static_cast<std::size_t>(routed.places[static_cast<std::size_t>(i)])]);
    add_rows(std::span(routed.tokens).subspan(static_cast<std::size_t>(row), own_shares.size()), own_shares,
             results.data(), hidden, sums);
    row = end;
  }
}

}  // namespace

void check_activations() { exact_inputs(); }

void lay_panels(WeightMatrix& weight) {
  MOTLEY_CHECK(weight.panel == 0 && weight.values.is_contiguous());
  const DType type = type_of(weight);
  weight.panel =
      type == DType::bf16 ? cpu_kernels<Bf16>().product(type)->panel : cpu_kernels<float>().product(type)->panel;
  if (weight.panel == 0) return;
  const std::int64_t rows = weight.values.size(0), row_bytes = weight.values.size(1) * weight.values.element_size();
  at::parallel_for(0, ceil_div(rows, weight.panel), 16, [&](std::int64_t first, std::int64_t last) {
    std::vector<std::byte> as_read(static_cast<std::size_t>(weight.panel * row_bytes));
    for (std::int64_t row = first * weight.panel; row < std::min(last * weight.panel, rows); row += weight.panel) {
      const std::int64_t count = std::min(weight.panel, rows - row);
      std::byte* panel = mutable_data_of<std::byte>(weight.values) + row * row_bytes;
      std::copy_n(panel, count * row_bytes, as_read.data());
      lay_panel(type, as_read.data(), count, row_bytes, panel);
    }
  });
}

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

void dequantise_one(const WeightMatrix& weight, std::int64_t row, float* out) {
  const bool blocks = weight.values.scalar_type() == at::kByte;
  const std::int64_t width = blocks ? weight.skipped + weight.inputs : weight.values.size(1);
  thread_local std::vector<std::byte> bytes;
  thread_local std::vector<float> values;
  bytes.resize(static_cast<std::size_t>(weight.values.size(1) * weight.values.element_size()));
  values.resize(static_cast<std::size_t>(width));
  copy_row(weight, row, bytes.data());
  dequantise_row(type_of(weight), bytes.data(), width, values.data());
  std::copy_n(values.data() + weight.skipped, width - weight.skipped, out);
}

void multiply(std::span<const CpuProduct> products, const Tensor& input) {
  MOTLEY_CHECK(input.size(0) == 0 || input.stride(1) == 1);
  for (const CpuProduct& one : products) MOTLEY_CHECK(one.out.stride(1) == 1);
  with_type(input, [&]<class T>(T) { multiply_by<T>(products, input); });
}

void multiply_experts(Activation kind, Tensor& out, Tensor& gates, Tensor& others, const Tensor& input,
                      const Tensor& ids, const Tensor& shares, const ExpertWeights& experts) {
  MOTLEY_CHECK(input.stride(1) == 1 && out.is_contiguous() && gates.is_contiguous() && others.is_contiguous());
  const RoutedRows routed(ids, experts);
  const Tensor flat = shares.contiguous();
  const std::span<const float> all_shares(flat.const_data_ptr<float>(), static_cast<std::size_t>(flat.numel()));
  with_type(input, [&]<class T>(T) {
    Tensor sums = std::is_same_v<T, float> ? out : at::empty(out.sizes(), at::kFloat);
    sums.zero_();
    mix<T>(kind, gates, others, input, routed, all_shares, experts, mutable_data_of<float>(sums));
    if (!sums.is_same(out)) out.copy_(sums);
  });
}

}  // namespace motley
