// The operations of the forward pass on tensors: once for CPUs, once for any device, and once to be differentiated.
//
// The first two write into the tensor that `out` is, which must exist; the differentiable ones make `out` another
// tensor. What holds of both is all that a caller may rely on: after the call, `out` is the result.
//
// Activations are fp32 or bf16, norms and biases of the same type; reductions are in fp32 whatever the type (in fp64
// where the differentiable operations get fp64). T: tokens of the step.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "motley/engine/ops/kv_cache.hpp"
#include "motley/engine/ops/rotary_frequencies.hpp"
#include "motley/engine/ops/weight_matrix.hpp"
#include "motley/model/model.hpp"

namespace motley {

struct NormWeights {
  at::Tensor weight;
  at::Tensor bias;  // may be undefined
};

struct LinearWeights {
  WeightMatrix weight = {};  // [outputs, inputs]
  at::Tensor bias = {};      // [outputs]; may be undefined
};

// The FFNs of a block of which a token takes some, or those of them that a rank holds.
struct ExpertWeights {
  std::vector<LinearWeights> gate, up, down;  // of each expert
  std::int64_t first = 0;                     // number of the first of them
};

// One of several products of the same input.
struct LinearCall {
  at::Tensor& out;
  const LinearWeights& linear;
};

// What becomes of the heads of queries and keys before they meet.
struct HeadRotation {
  Norm norm = Norm::rms;
  const NormWeights& query_norm;  // of each head; without a weight: none
  const NormWeights& key_norm;
  double epsilon = 0;
  const at::Tensor& positions;                     // [T]
  const RotaryFrequencies* frequencies = nullptr;  // null: no rotation
};

// How a token is drawn from a row of logits where neither penalties nor top-k or top-p come in (sampler.cpp).
struct PlainDraw {
  float temperature = 0;
  float min_p = 0;
  double uniform = 0;  // in [0, 1): picks among what is left
};

// Rows [first_row, first_row + count) of a step are tokens [position, position + count) of a sequence.
struct SequenceRows {
  std::int64_t first_row = 0;
  std::int64_t count = 0;
  std::int64_t position = 0;
  std::span<const std::int32_t> blocks;
  std::int32_t slot = -1;  // where layers keep what does not grow with it
};

// What meets the states of a delta net's heads, of the rows of a step.
struct DeltaHeads {
  at::Tensor query, key;   // [T, key heads, key dim]; rows may be apart
  at::Tensor value;        // [T, value heads, value dim]; rows may be apart
  at::Tensor alpha, beta;  // [T, value heads], fp32
  at::Tensor decay, step;  // [value heads], fp32
  bool tiled = false;      // as DeltaNet has it
};

struct AttentionShape {
  std::int64_t window = 0;  // keys that a query sees, itself among them; 0: all before it
  double scale = 1;         // of the scores
  at::Tensor sinks = {};  // [heads]; may be undefined: of each, a score that adds to the softmax's sum and has no value
  std::size_t table = 0;  // which of the step's
};

// A number as a tensor of this type has it.
inline double rounded(double number, at::ScalarType type) {
  return type == at::kBFloat16 ? static_cast<float>(c10::BFloat16(static_cast<float>(number))) : number;
}

class Ops {
 public:
  virtual ~Ops() = default;
  // Called before the operations of a step, which are about its rows from then on: the same in each of the tables, of
  // which the blocks differ. `positions`: [T].
  virtual void begin_step(const std::vector<std::vector<SequenceRows>>& tables, const at::Tensor& positions) const {
    (void)tables, (void)positions;
  }
  // `work` consists of operations that are the same for each step with this `key`, on the same tensors, and of nothing
  // else: what was recorded at an earlier step may be run in place of it.
  virtual void replay_or_run(std::int64_t key, const std::function<void()>& work) const { (void)key, work(); }
  // Called once for each matrix, before it is used: its bytes may be laid in another order, that of these operations.
  virtual void prepare(WeightMatrix& weight) const { (void)weight; }
  // out [T, N] = input [T, K] times the transpose of weight [N, K], plus bias [N] where it is defined. `out` may be
  // fp32 where the others are bf16, and its rows may be apart.
  virtual void linear(at::Tensor& out, const at::Tensor& input, const WeightMatrix& weight,
                      const at::Tensor& bias) const = 0;
  virtual void linears(std::initializer_list<LinearCall> calls, const at::Tensor& input) const {
    for (const LinearCall& call : calls) linear(call.out, input, call.linear.weight, call.linear.bias);
  }
  // out = activation(gate's product) times up's product, which `other` may hold in between.
  virtual void gated(Activation kind, at::Tensor& out, at::Tensor& other, const at::Tensor& input,
                     const LinearWeights& gate, const LinearWeights& up) const {
    linears({{other, up}, {out, gate}}, input);
    activate(kind, out, other);
  }
  // sum += the product, which `product` may hold in between.
  virtual void add_linear(at::Tensor& sum, at::Tensor& product, const at::Tensor& input,
                          const LinearWeights& linear_weights) const {
    linear(product, input, linear_weights.weight, {});
    add(sum, product, linear_weights.bias);
  }
  // Over the last dimension of input [..., columns]; in place where `out` is `input`. Without a weight it counts as 1.
  virtual void norm(Norm kind, at::Tensor& out, const at::Tensor& input, const NormWeights& weights,
                    double epsilon) const = 0;
  // heads [T, count, head_dim], in place; positions [T].
  virtual void rotate(at::Tensor& heads, const at::Tensor& positions, const RotaryFrequencies& frequencies) const = 0;
  // query [T, heads, head_dim] and key [T, kv_heads, head_dim], in place.
  virtual void rotate_heads(at::Tensor& query, at::Tensor& key, const HeadRotation& turn) const {
    if (turn.query_norm.weight.defined()) norm(turn.norm, query, query, turn.query_norm, turn.epsilon);
    if (turn.key_norm.weight.defined()) norm(turn.norm, key, key, turn.key_norm, turn.epsilon);
    if (turn.frequencies == nullptr) return;
    rotate(query, turn.positions, *turn.frequencies);
    rotate(key, turn.positions, *turn.frequencies);
  }
  // A router's logits [T, experts] become scores, fp32. Unlike devices round them unlike.
  virtual void score(RouterScore kind, at::Tensor& logits) const;
  // Of each row of scores [T, experts] the experts with the `active` largest, to which `selection_bias` [experts],
  // fp32, is added where it is defined, of equal ones the lower: ids [T, active], int64, ascending, and their shares
  // [T, active], fp32, which the router's rule makes of their scores. All devices choose the same.
  virtual void route(at::Tensor& ids, at::Tensor& shares, const at::Tensor& scores, const at::Tensor& selection_bias,
                     const Experts& experts) const;
  // out [T, hidden] = for each row of input [T, hidden] the sum over those of its experts `ids` that are here of share
  // x down(activation(gate's product) x up's product), in fp32 and in the order of the ids. `gates` and `others` [T x
  // active, columns] may hold products in between.
  virtual void mix_experts(Activation kind, at::Tensor& out, at::Tensor& gates, at::Tensor& others,
                           const at::Tensor& input, const at::Tensor& ids, const at::Tensor& shares,
                           const ExpertWeights& experts) const;
  // values = activation(values), times `factors` where they are defined; of swiglu they always are.
  virtual void activate(Activation kind, at::Tensor& values, const at::Tensor& factors) const = 0;
  // sum [T, N] += terms [T, N], plus bias [N] where it is defined.
  virtual void add(at::Tensor& sum, const at::Tensor& terms, const at::Tensor& bias) const = 0;
  // values *= the sigmoid of gates, of the same shape or with a last dimension of 1; their rows may be apart.
  virtual void gate(at::Tensor& values, const at::Tensor& gates) const;
  // values [T, channels], whose rows may be apart, become silu of the sums of their last weight.size(1) rows in the
  // sequence times weight [channels, width], fp32. `kept` [slots, channels, width - 1], fp32, has the inputs before
  // the sequences' rows, and then their last; where it is undefined each sequence stands whole in the step.
  virtual void convolve(at::Tensor& values, const at::Tensor& weight, const at::Tensor& kept,
                        const std::vector<SequenceRows>& sequences) const;
  // out [T, value heads, value dim]: of each row and head what its state gives for the query, of length 1 / sqrt(key
  // dim), once it has decayed by exp(-exp(decay) softplus(alpha + step)) and has learnt to give the value for the key,
  // of length 1, by the part sigmoid(beta). `states` [slots, value heads, key dim, value dim], fp32, are those before
  // the sequences' rows, and then those after; where they are undefined each sequence stands whole in the step.
  virtual void gated_delta(at::Tensor& out, const DeltaHeads& heads, const at::Tensor& states,
                           const std::vector<SequenceRows>& sequences) const;
  // values *= factor, which is rounded to their type first.
  virtual void scale(at::Tensor& values, double factor) const { values.mul_(rounded(factor, values.scalar_type())); }
  // out [T, columns] = rows `tokens` [T] of a table of which `table` holds `rows`; zeros for a token outside.
  virtual void embedding(at::Tensor& out, const at::Tensor& tokens, const WeightMatrix& table,
                         const Span& rows) const = 0;
  // Puts key and value [T, kv_heads, head_dim] where the sequences' blocks say. Then each row of query [T, heads,
  // head_dim] attends to its sequence's cached keys up to and with its own position: out, of the query's shape. The
  // differentiable operations have no cache: each sequence stands whole in the step.
  virtual void attend(at::Tensor& out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const LayerCache& cache, const std::vector<SequenceRows>& sequences,
                      const AttentionShape& shape) const = 0;
  // A token for each row of logits [rows, vocabulary], fp32, where these operations draw; -1: none can be drawn.
  virtual std::optional<std::vector<std::int32_t>> draw(const at::Tensor& logits,
                                                        std::span<const PlainDraw> draws) const {
    (void)logits, (void)draws;
    return std::nullopt;
  }
};

const Ops& cpu_ops();             // the kernels of engine/cpu, over at::parallel_for
const Ops& generic_ops();         // ATen alone: any device
const Ops& differentiable_ops();  // ATen alone, and autograd runs through it

// Of operations that are there as long as the program, as ComputeDevice::make_ops() returns them.
inline std::shared_ptr<const Ops> lasting(const Ops& ops) { return {std::shared_ptr<const Ops>(), &ops}; }

}  // namespace motley
