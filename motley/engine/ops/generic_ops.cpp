// The operations written with ATen alone, once: a policy says whether a result is written into a tensor that exists, or
// is a tensor of its own with its history. Intermediate tensors come from the device's caching allocator.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <utility>

#include "motley/base/rounding.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

struct IntoPlace {
  static constexpr bool in_place = true;
  static void put(Tensor& out, const Tensor& result, at::ScalarType) { out.copy_(result); }
};
struct AsNew {
  static constexpr bool in_place = false;
  static void put(Tensor& out, const Tensor& result, at::ScalarType type) { out = result.to(type); }
};

// What sums are in.
Tensor wide(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat); }

// query [rows, heads, head_dim] from `position` on attends to keys [kv_heads, head_dim, end] and values [kv_heads, end,
// head_dim].
Tensor attention(const Tensor& query, const Tensor& keys, const Tensor& values, std::int64_t position,
                 const AttentionShape& shape) {
  const std::int64_t rows = query.size(0), heads = query.size(1), head_dim = query.size(2);
  const std::int64_t kv_heads = values.size(0), end = values.size(1);
  // The query heads of one KV head side by side: [kv_heads, group * rows, head_dim].
  const Tensor grouped = query.transpose(0, 1).reshape({kv_heads, heads / kv_heads * rows, head_dim});
  Tensor scores = at::matmul(wide(grouped), wide(keys)) * shape.scale;
  scores = scores.view({kv_heads, heads / kv_heads, rows, end});
  const Tensor at_key = at::arange(end, query.options().dtype(at::kLong)).unsqueeze(0);
  const Tensor at_row = at::arange(position, end, query.options().dtype(at::kLong)).unsqueeze(1);
  Tensor hidden = at_key > at_row;
  if (shape.window > 0) hidden = at::logical_or(hidden, at_key <= at_row - shape.window);
  scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  if (shape.sinks.defined()) {
    const Tensor sinks = shape.sinks.to(scores.scalar_type()).view({kv_heads, heads / kv_heads, 1, 1});
    scores = at::cat({scores, sinks.expand({-1, -1, rows, -1})}, -1);
  }
  const Tensor weights = at::softmax(scores, -1).narrow(-1, 0, end).reshape({kv_heads, heads / kv_heads * rows, end});
  return at::matmul(weights, wide(values)).view({heads, rows, head_dim}).transpose(0, 1);
}

struct Quantised {
  Tensor elements, scales;
};

// heads [rows, kv_heads, head_dim] as q8_0: elements in this shape, scales [rows, kv_heads, head_dim / 32]. The same
// bits as quantise_row() makes: halves are rounded away from zero.
Quantised quantised(const Tensor& heads) {
  const Tensor groups = heads.to(at::kFloat).unflatten(2, {-1, kv_scale_values});
  const Tensor scale = groups.abs().amax(-1, true) / 127;
  const Tensor inverse = at::where(scale == 0, at::zeros_like(scale), scale.reciprocal());
  const Tensor ratio = groups * inverse;
  const float below_half = 0x1.fffffep-2F;  // a half would bring the number before it to 1
  const Tensor whole = at::trunc(ratio + at::copysign(at::full_like(ratio, below_half), ratio)).clamp(-127, 127);
  return {whole.to(at::kChar).flatten(2, 3), scale.squeeze(-1).to(at::kHalf)};
}

void write_cache(const LayerCache& cache, const Tensor& key, const Tensor& value, const SequenceRows& rows) {
  const std::int64_t block_tokens = cache.block_tokens();
  std::vector<std::int64_t> blocks, offsets;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t position = rows.position + i;
    blocks.push_back(rows.blocks[static_cast<std::size_t>(position / block_tokens)]);
    offsets.push_back(position % block_tokens);
  }
  const Tensor block = at::tensor(blocks, at::kLong).to(key.device());
  const Tensor offset = at::tensor(offsets, at::kLong).to(key.device());
  const at::indexing::Slice all;
  const auto put_each = [&](Tensor to, const Tensor& from) { to.index_put_({block, all, all, offset}, from); };
  const Tensor own_key = key.narrow(0, rows.first_row, rows.count),
               own_value = value.narrow(0, rows.first_row, rows.count);
  if (!cache.key_scales.defined()) {
    put_each(cache.keys, own_key.to(cache.keys.scalar_type()));
    put_each(cache.values.transpose(2, 3), own_value.to(cache.values.scalar_type()));
    return;
  }
  const Quantised keys = quantised(own_key), values = quantised(own_value);
  put_each(cache.keys, keys.elements);
  put_each(cache.key_scales, keys.scales);
  put_each(cache.values.transpose(2, 3), values.elements);
  put_each(cache.value_scales, values.scales);
}

// elements [blocks, kv_heads, head_dim, block_tokens] of these blocks, times their scales where there are any.
Tensor read_cache(const Tensor& elements, const Tensor& scales, const Tensor& blocks) {
  const Tensor found = elements.index_select(0, blocks);
  if (!scales.defined()) return found;
  const Tensor of_groups = scales.index_select(0, blocks).to(at::kFloat).unsqueeze(3);
  return (found.to(at::kFloat).unflatten(2, {-1, kv_scale_values}) * of_groups).flatten(2, 3);
}

Tensor attend_cached(const Tensor& query, const LayerCache& cache, const SequenceRows& rows,
                     const AttentionShape& shape) {
  const std::int64_t kv_heads = cache.values.size(1), head_dim = cache.values.size(3);
  const std::int64_t end = rows.position + rows.count;
  const std::int64_t block_count = ceil_div(end, cache.block_tokens());
  const std::vector<std::int64_t> ids(rows.blocks.begin(), rows.blocks.begin() + block_count);
  const Tensor blocks = at::tensor(ids, at::kLong).to(query.device());
  const auto side_by_side = [&](const Tensor& elements, const Tensor& scales) {  // [kv_heads, head_dim, end]
    const Tensor found = read_cache(elements, scales, blocks).permute({1, 2, 0, 3});
    return found.reshape({kv_heads, head_dim, -1}).narrow(2, 0, end);
  };
  const Tensor keys = side_by_side(cache.keys, cache.key_scales),
               values = side_by_side(cache.values.transpose(2, 3), cache.value_scales).transpose(1, 2);
  return attention(query, keys, values, rows.position, shape);
}

template <class Result>
class AtenOps final : public Ops {
 public:
  void linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const override {
    const Tensor values = dequantised(weight, input.scalar_type());
    if constexpr (!Result::in_place)
      out = at::linear(input, values, bias);
    else if (out.scalar_type() != input.scalar_type())
      out.copy_(at::linear(input, values, bias));
    else if (bias.defined())
      at::addmm_out(out, bias, input, values.t());
    else
      at::mm_out(out, input, values.t());
  }

  void norm(Norm kind, Tensor& out, const Tensor& input, const NormWeights& weights, double epsilon) const override {
    Tensor x = wide(input);
    if (kind == Norm::layer) x = x - x.mean(-1, true);
    x = x * at::rsqrt(x.square().mean(-1, true) + epsilon);
    if (weights.weight.defined()) x = x * (wide(weights.weight) + (kind == Norm::rms1p ? 1 : 0));
    if (weights.bias.defined()) x = x + wide(weights.bias);
    Result::put(out, x, input.scalar_type());
  }

  void rotate(Tensor& heads, const Tensor& positions, const RotaryFrequencies& frequencies) const override {
    const auto pairs = static_cast<std::int64_t>(frequencies.inverse_frequencies.size());
    const Tensor inverse =
        at::from_blob(const_cast<float*>(frequencies.inverse_frequencies.data()), {pairs}, at::kFloat);
    const Tensor angles = positions.to(at::kFloat).unsqueeze(1) * inverse.to(heads.device()).unsqueeze(0);
    const Tensor cosine = angles.cos().mul(frequencies.amplitude).unsqueeze(1);  // [T, 1, pairs]
    const Tensor sine = angles.sin().mul(frequencies.amplitude).unsqueeze(1);
    const Tensor a = wide(heads.narrow(2, 0, pairs)), b = wide(heads.narrow(2, pairs, pairs));
    const Tensor others = wide(heads.narrow(2, 2 * pairs, heads.size(2) - 2 * pairs));
    Result::put(heads, at::cat({a * cosine - b * sine, b * cosine + a * sine, others}, 2), heads.scalar_type());
  }

  void activate(Activation kind, Tensor& values, const Tensor& factors) const override {
    const Tensor x = wide(values);
    Tensor y, by = factors.defined() ? wide(factors) : Tensor();
    switch (kind.kind) {
      case Activation::silu: y = at::silu(x); break;
      case Activation::gelu: y = at::gelu(x); break;
      case Activation::gelu_tanh: y = at::gelu(x, "tanh"); break;
      case Activation::relu: y = at::relu(x); break;
      case Activation::swiglu: {
        const Tensor least = x.clamp_max(kind.limit);
        y = least * at::sigmoid(kind.slope * least);
        by = by.clamp(-kind.limit, kind.limit) + 1;
      }
    }
    Result::put(values, by.defined() ? y * by : y, values.scalar_type());
  }

  void add(Tensor& sum, const Tensor& terms, const Tensor& bias) const override {
    Result::put(sum, bias.defined() ? wide(sum) + (wide(terms) + wide(bias)) : sum + terms, sum.scalar_type());
  }

  void scale(Tensor& values, double factor) const override {
    Result::put(values, values * rounded(factor, values.scalar_type()), values.scalar_type());
  }

  void embedding(Tensor& out, const Tensor& tokens, const WeightMatrix& table, const Span& rows) const override {
    const Tensor inside = at::logical_and(tokens >= rows.first, tokens < rows.end);
    const Tensor index = at::where(inside, tokens - rows.first, at::zeros_like(tokens));
    WeightMatrix found = table;
    found.values = table.values.index_select(0, index);
    if (table.scaled()) found.scales = table.scales.index_select(0, index);
    const bool expanded = table.scaled() || is_quantised(table.type) || table.values.scalar_type() == at::kHalf;
    const at::ScalarType type = expanded ? at::kFloat : table.values.scalar_type();
    Result::put(out, dequantised(found, type) * inside.unsqueeze(1), type);
  }

  void attend(Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value, const LayerCache& cache,
              const std::vector<SequenceRows>& sequences, const AttentionShape& shape) const override {
    const auto own = [](const Tensor& tensor, const SequenceRows& rows) {
      return tensor.narrow(0, rows.first_row, rows.count);
    };
    if constexpr (Result::in_place) {
      for (const SequenceRows& rows : sequences) write_cache(cache, key, value, rows);
      for (const SequenceRows& rows : sequences)
        own(out, rows).copy_(attend_cached(own(query, rows), cache, rows, shape));
    } else {
      std::vector<Tensor> results;
      for (const SequenceRows& rows : sequences) {
        MOTLEY_CHECK(rows.position == 0);
        const Tensor keys = own(key, rows).permute({1, 2, 0}), values = own(value, rows).transpose(0, 1);
        results.push_back(attention(own(query, rows), keys, values, 0, shape).to(query.scalar_type()));
      }
      out = at::cat(results, 0);
    }
  }
};

// The values of a matrix in GGUF's blocks, as fp32.
Tensor expanded_blocks(const WeightMatrix& matrix) {
  const Tensor blocks = matrix.values.to(at::kCPU).contiguous();
  const std::int64_t rows = blocks.size(0), row_bytes = blocks.size(1), width = matrix.skipped + matrix.inputs;
  const Tensor values = at::empty({rows, width}, at::kFloat);
  const auto* from = reinterpret_cast<const std::byte*>(blocks.const_data_ptr<std::uint8_t>());
  auto* to = values.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      dequantise_row(matrix.type, from + row * row_bytes, width, to + row * width);
  });
  return values.narrow(1, matrix.skipped, matrix.inputs).to(matrix.values.device());
}

}  // namespace

Tensor dequantised(const WeightMatrix& matrix, at::ScalarType type) {
  MOTLEY_CHECK(matrix.panel == 0);
  if (is_quantised(matrix.type)) return expanded_blocks(matrix).to(type);
  if (!matrix.scaled()) return matrix.values.to(type);
  MOTLEY_CHECK(matrix.group > 0 && matrix.values.size(1) == matrix.scales.size(1) * matrix.group);
  const Tensor grouped = matrix.values.to(at::kFloat).view({matrix.values.size(0), -1, matrix.group});
  return (grouped * matrix.scales.to(at::kFloat).unsqueeze(2)).view(matrix.values.sizes()).to(type);
}

const Ops& generic_ops() {
  static const AtenOps<IntoPlace> ops;
  return ops;
}

const Ops& differentiable_ops() {
  static const AtenOps<AsNew> ops;
  return ops;
}

}  // namespace motley
