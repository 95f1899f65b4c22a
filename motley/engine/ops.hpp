// The operations of the forward pass on tensors: once for CPUs, once for any device, and once to be differentiated.
//
// The first two write into the tensor that `out` is, which must exist; the differentiable ones make `out` another
// tensor. What holds of both is all that a caller may rely on: after the call, `out` is the result.
//
// Activations are fp32 or bf16, norms and biases of the same type; reductions are in fp32 whatever the type (in fp64
// where the differentiable operations get fp64). T: tokens of the step.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "motley/engine/kv_cache.hpp"
#include "motley/engine/rotary.hpp"
#include "motley/engine/weight_matrix.hpp"
#include "motley/model/model.hpp"

namespace motley {

struct NormWeights {
  at::Tensor weight;
  at::Tensor bias;  // may be undefined
};

// Rows [first_row, first_row + count) of a step are tokens [position, position + count) of a sequence.
struct SequenceRows {
  std::int64_t first_row = 0;
  std::int64_t count = 0;
  std::int64_t position = 0;
  std::span<const std::int32_t> blocks;
};

struct AttentionShape {
  std::int64_t window = 0;  // keys that a query sees, itself among them; 0: all before it
  double scale = 1;         // of the scores
};

class Ops {
 public:
  virtual ~Ops() = default;
  // Called once for each matrix, before it is used: its bytes may be laid in another order, that of these operations.
  virtual void prepare(WeightMatrix& weight) const { (void)weight; }
  // out [T, N] = input [T, K] times the transpose of weight [N, K], plus bias [N] where it is defined. `out` may be
  // fp32 where the others are bf16, and its rows may be apart.
  virtual void linear(at::Tensor& out, const at::Tensor& input, const WeightMatrix& weight,
                      const at::Tensor& bias) const = 0;
  // Over the last dimension of input [..., columns]; in place where `out` is `input`.
  virtual void norm(Norm kind, at::Tensor& out, const at::Tensor& input, const NormWeights& weights,
                    double epsilon) const = 0;
  // heads [T, count, head_dim], in place; positions [T].
  virtual void rotate(at::Tensor& heads, const at::Tensor& positions, const RotaryFrequencies& frequencies) const = 0;
  // values = activation(values), times `factors` where they are defined.
  virtual void activate(Activation kind, at::Tensor& values, const at::Tensor& factors) const = 0;
  // sum [T, N] += terms [T, N], plus bias [N] where it is defined.
  virtual void add(at::Tensor& sum, const at::Tensor& terms, const at::Tensor& bias) const = 0;
  // out [T, columns] = rows `tokens` [T] of a table of which `table` holds `rows`; zeros for a token outside.
  virtual void look_up(at::Tensor& out, const at::Tensor& tokens, const WeightMatrix& table,
                       const Span& rows) const = 0;
  // Puts key and value [T, kv_heads, head_dim] where the sequences' blocks say. Then each row of query [T, heads,
  // head_dim] attends to its sequence's cached keys up to and with its own position: out, of the query's shape. The
  // differentiable operations have no cache: each sequence stands whole in the step.
  virtual void attend(at::Tensor& out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const LayerCache& cache, const std::vector<SequenceRows>& sequences,
                      const AttentionShape& shape) const = 0;
};

const Ops& cpu_ops();             // the kernels of cpu_kernels.hpp, over at::parallel_for
const Ops& generic_ops();         // ATen alone: any device
const Ops& differentiable_ops();  // ATen alone, and autograd runs through it
const Ops& ops_for(at::Device device);

}  // namespace motley
