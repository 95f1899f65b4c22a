// The operations written with ATen alone. Intermediate tensors come from the device's caching allocator.
#include <ATen/ATen.h>

#include <cmath>

#include "motley/engine/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

class GenericOps final : public Ops {
 public:
  void linear(Tensor out, const Tensor& input, const Tensor& weight, const Tensor& bias) const override {
    if (out.scalar_type() != input.scalar_type()) {
      out.copy_(at::linear(input, weight, bias));
    } else if (bias.defined()) {
      at::addmm_out(out, bias, input, weight.t());
    } else {
      at::mm_out(out, input, weight.t());
    }
  }

  void norm(Norm kind, Tensor out, const Tensor& input, const NormWeights& weights, double epsilon) const override {
    Tensor x = input.to(at::kFloat);
    if (kind == Norm::layer) x = x - x.mean(-1, true);
    x = x * at::rsqrt(x.square().mean(-1, true) + epsilon) * weights.weight.to(at::kFloat);
    if (weights.bias.defined()) x = x + weights.bias.to(at::kFloat);
    out.copy_(x);
  }

  void rotate(Tensor heads, const Tensor& positions, const RotaryFrequencies& frequencies) const override {
    const auto pairs = static_cast<std::int64_t>(frequencies.inverse_frequencies.size());
    const Tensor inverse =
        at::from_blob(const_cast<float*>(frequencies.inverse_frequencies.data()), {pairs}, at::kFloat);
    const Tensor angles = positions.to(at::kFloat).unsqueeze(1) * inverse.to(heads.device()).unsqueeze(0);
    const Tensor cosine = angles.cos().mul(frequencies.amplitude).unsqueeze(1);  // [T, 1, pairs]
    const Tensor sine = angles.sin().mul(frequencies.amplitude).unsqueeze(1);
    const Tensor a = heads.narrow(2, 0, pairs).to(at::kFloat, false, true);
    const Tensor b = heads.narrow(2, pairs, pairs).to(at::kFloat, false, true);
    heads.narrow(2, 0, pairs).copy_(a * cosine - b * sine);
    heads.narrow(2, pairs, pairs).copy_(b * cosine + a * sine);
  }

  void activate(Activation kind, Tensor values, const Tensor& factors) const override {
    const Tensor x = values.to(at::kFloat);
    Tensor y;
    switch (kind) {
      case Activation::silu: y = at::silu(x); break;
      case Activation::gelu: y = at::gelu(x); break;
      case Activation::gelu_tanh: y = at::gelu(x, "tanh"); break;
      case Activation::relu: y = at::relu(x); break;
    }
    values.copy_(factors.defined() ? y * factors.to(at::kFloat) : y);
  }

  void add(Tensor sum, const Tensor& terms, const Tensor& bias) const override {
    sum.copy_(bias.defined() ? sum.to(at::kFloat) + (terms.to(at::kFloat) + bias.to(at::kFloat)) : sum + terms);
  }

  void look_up(Tensor out, const Tensor& tokens, const Tensor& table, const Span& rows) const override {
    const Tensor inside = at::logical_and(tokens >= rows.first, tokens < rows.end);
    const Tensor index = at::where(inside, tokens - rows.first, at::zeros_like(tokens));
    out.copy_(table.index_select(0, index) * inside.unsqueeze(1));
  }

  void write_cache(const LayerCache& cache, const Tensor& key, const Tensor& value,
                   const std::vector<SequenceRows>& sequences) const override {
    const std::int64_t block_tokens = cache.block_tokens();
    for (const SequenceRows& rows : sequences) {
      std::vector<std::int64_t> blocks, offsets;
      for (std::int64_t i = 0; i < rows.count; ++i) {
        const std::int64_t position = rows.position + i;
        blocks.push_back(rows.blocks[static_cast<std::size_t>(position / block_tokens)]);
        offsets.push_back(position % block_tokens);
      }
      const Tensor block = at::tensor(blocks, at::kLong).to(key.device());
      const Tensor offset = at::tensor(offsets, at::kLong).to(key.device());
      Tensor keys = cache.keys, values = cache.values;
      keys.index_put_({block, at::indexing::Slice(), at::indexing::Slice(), offset},
                      key.narrow(0, rows.first_row, rows.count).to(keys.scalar_type()));
      values.index_put_({block, at::indexing::Slice(), offset},
                        value.narrow(0, rows.first_row, rows.count).to(values.scalar_type()));
    }
  }

  void attend(Tensor out, const Tensor& query, const LayerCache& cache, const std::vector<SequenceRows>& sequences,
              const AttentionShape& shape) const override {
    for (const SequenceRows& rows : sequences)
      attend_one(out.narrow(0, rows.first_row, rows.count), query.narrow(0, rows.first_row, rows.count), cache, rows,
                 shape);
  }

 private:
  static void attend_one(Tensor out, const Tensor& query, const LayerCache& cache, const SequenceRows& rows,
                         const AttentionShape& shape) {
    const std::int64_t kv_heads = cache.values.size(1), head_dim = cache.values.size(3);
    const std::int64_t heads = query.size(1), end = rows.position + rows.count;
    const std::int64_t block_count = (end + cache.block_tokens() - 1) / cache.block_tokens();
    const std::vector<std::int64_t> ids(rows.blocks.begin(), rows.blocks.begin() + block_count);
    const Tensor blocks = at::tensor(ids, at::kLong).to(query.device());
    // [kv_heads, head_dim, end] and [kv_heads, end, head_dim]
    const Tensor keys =
        cache.keys.index_select(0, blocks).permute({1, 2, 0, 3}).reshape({kv_heads, head_dim, -1}).narrow(2, 0, end);
    const Tensor values =
        cache.values.index_select(0, blocks).permute({1, 0, 2, 3}).reshape({kv_heads, -1, head_dim}).narrow(1, 0, end);
    // The query heads of one KV head side by side: [kv_heads, group * count, head_dim].
    const Tensor grouped = query.transpose(0, 1).reshape({kv_heads, heads / kv_heads * rows.count, head_dim});
    Tensor scores = at::matmul(grouped.to(at::kFloat), keys.to(at::kFloat)) * shape.scale;
    scores = scores.view({kv_heads, heads / kv_heads, rows.count, end});
    const Tensor at_key = at::arange(end, query.options().dtype(at::kLong)).unsqueeze(0);
    const Tensor at_row = at::arange(rows.position, end, query.options().dtype(at::kLong)).unsqueeze(1);
    Tensor hidden = at_key > at_row;
    if (shape.window > 0) hidden = at::logical_or(hidden, at_key <= at_row - shape.window);
    scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    const Tensor weights = at::softmax(scores, -1).view({kv_heads, heads / kv_heads * rows.count, end});
    out.copy_(at::matmul(weights, values.to(at::kFloat)).view({heads, rows.count, head_dim}).transpose(0, 1));
  }
};

}  // namespace

const Ops& generic_ops() {
  static const GenericOps ops;
  return ops;
}

const Ops& ops_for(at::Device device) { return device.is_cpu() ? cpu_ops() : generic_ops(); }

}  // namespace motley
