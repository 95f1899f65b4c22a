// Gated delta nets with ATen alone: for any device, and to be differentiated.
#include <cmath>

#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

constexpr std::int64_t chunk_tokens = 64;  // whose effects on one another are solved for at once
constexpr double least_square = 1e-6;      // added to the squared length of a query or key

Tensor in_full(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat); }

void put(Tensor& out, const Tensor& result, at::ScalarType type) {
  if (out.defined())
    out.copy_(result);
  else
    out = result.to(type);
}

// What a slot has of a sequence, or the beginning of one.
Tensor before(const Tensor& kept, const SequenceRows& rows, const Tensor& like, at::IntArrayRef shape) {
  return kept.defined() && rows.position > 0 ? kept[rows.slot] : at::zeros(shape, like.options());
}

Tensor with_length_one(const Tensor& heads) {
  const Tensor wide = in_full(heads);
  return wide * at::rsqrt(wide.square().sum(-1, true) + least_square);
}

// Heads [T, key heads, size] as [value heads, T, size]: each for the value heads that go with it.
Tensor beside_values(const Tensor& heads, std::int64_t value_heads, bool tiled) {
  const std::int64_t each = value_heads / heads.size(1);
  const Tensor many = tiled ? heads.repeat({1, each, 1}) : heads.repeat_interleave(each, 1);
  return many.transpose(0, 1);
}

// Some tokens: query and key [heads, C, key dim], value [heads, C, value dim], the logarithm of the decay and the part
// that is learnt [heads, C]. What the states [heads, key dim, value dim] give: [heads, C, value dim].
//
// Token i adds key_i x learnt_i to the state, where learnt_i = beta_i (value_i - what the state gave for key_i), which
// has what earlier tokens added: a triangular system.
Tensor run_chunk(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_decay,
                 const Tensor& beta, Tensor& states) {
  const Tensor since = log_decay.cumsum(1).unsqueeze(2), decayed = since.exp();  // from the chunk's beginning
  const Tensor between = (since - since.transpose(1, 2)).tril().exp().tril();    // [heads, later, earlier]
  const Tensor system = (at::matmul(key, key.transpose(1, 2)) * between * beta.unsqueeze(2)).tril(-1);
  const Tensor wanted = beta.unsqueeze(2) * (value - decayed * at::matmul(key, states));
  const Tensor learnt = at::linalg_solve_triangular(system, wanted, /*upper=*/false, /*left=*/true,
                                                    /*unitriangular=*/true);
  const Tensor given =
      decayed * at::matmul(query, states) + at::matmul(at::matmul(query, key.transpose(1, 2)) * between, learnt);
  const Tensor to_end = (since.narrow(1, since.size(1) - 1, 1) - since).exp();
  states = decayed.narrow(1, since.size(1) - 1, 1) * states + at::matmul((key * to_end).transpose(1, 2), learnt);
  return given;
}

}  // namespace

void Ops::gate(Tensor& values, const Tensor& gates) const { values.mul_(at::sigmoid(in_full(gates))); }

void Ops::convolve(Tensor& values, const Tensor& weight, const Tensor& kept,
                   const std::vector<SequenceRows>& sequences) const {
  const std::int64_t channels = weight.size(0), width = weight.size(1);
  const Tensor taps = in_full(weight).unsqueeze(1);
  std::vector<Tensor> results;
  for (const SequenceRows& rows : sequences) {
    const Tensor own = in_full(values.narrow(0, rows.first_row, rows.count)).t();
    const Tensor all = at::cat({before(kept, rows, own, {channels, width - 1}), own}, 1);
    results.push_back(at::silu((all.unfold(1, width, 1) * taps).sum(2)).t());
    if (kept.defined()) kept[rows.slot].copy_(all.narrow(1, rows.count, width - 1));
  }
  const Tensor result = at::cat(results, 0);
  if (kept.defined())
    values.copy_(result);
  else
    values = result.to(values.scalar_type());
}

void Ops::gated_delta(Tensor& out, const DeltaHeads& heads, const Tensor& states,
                      const std::vector<SequenceRows>& sequences) const {
  const std::int64_t value_heads = heads.value.size(1), key_dim = heads.key.size(2), value_dim = heads.value.size(2);
  const Tensor query = beside_values(with_length_one(heads.query), value_heads, heads.tiled) *
                       (1 / std::sqrt(static_cast<double>(key_dim))),
               key = beside_values(with_length_one(heads.key), value_heads, heads.tiled),
               value = in_full(heads.value).transpose(0, 1), beta = at::sigmoid(heads.beta).t(),
               log_decay = (-heads.decay.exp() * at::softplus(heads.alpha + heads.step)).t();
  std::vector<Tensor> results;
  for (const SequenceRows& rows : sequences) {
    Tensor state = before(states, rows, value, {value_heads, key_dim, value_dim});
    for (std::int64_t done = 0; done < rows.count; done += chunk_tokens) {
      const auto part = [&](const Tensor& of) {
        return of.narrow(1, rows.first_row + done, std::min(chunk_tokens, rows.count - done));
      };
      results.push_back(run_chunk(part(query), part(key), part(value), part(log_decay), part(beta), state));
    }
    if (states.defined()) states[rows.slot].copy_(state);
  }
  put(out, at::cat(results, 1).transpose(0, 1), heads.value.scalar_type());
}

}  // namespace motley
