// The loops of the forward pass on a CPU, compiled once per instruction set and chosen at run time.
//
// Sums are accumulated in fp32 in an order that depends on the tensor's sizes alone: the result for one token does not
// depend on which other tokens are in the batch, nor on how a prompt is cut into chunks, nor on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "motley/engine/ops/kv_scales.hpp"
#include "motley/model/model.hpp"

namespace motley {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

// output[t][n] = sum over k of input[t][k] * weight[n][k], plus bias[n] where there is one.
template <class T>
struct LinearTask {
  const std::byte* input;    // as prepared, group of tokens by group
  std::int64_t input_bytes;  // of a token
  const std::byte* weight;
  const T* bias;               // may be null
  void* output;                // T, or fp32
  std::int64_t output_stride;  // in elements
  std::int64_t tokens;
  std::int64_t inputs;
  std::int64_t outputs;
};

// Products of weights of one type with inputs of type T, which are first converted to what meets such weights.
template <class T>
struct Product {
  std::int64_t (*prepared_bytes)(std::int64_t inputs);  // of a token
  // At most `together` tokens, whose inputs begin `stride` elements apart: of each, `skipped` zeros, then the inputs.
  void (*prepare)(const T* input, std::int64_t stride, std::int64_t tokens, std::int64_t inputs, std::int64_t skipped,
                  std::byte* prepared);
  std::int64_t together;  // tokens that are prepared at once, in each of a task's groups but the last
  void (*multiply)(const LinearTask<T>&, std::int64_t first, std::int64_t last);  // rows of the weight
  void (*multiply_fp32)(const LinearTask<T>&, std::int64_t first, std::int64_t last);
  std::int64_t panel;  // rows that lie interleaved, which `first` and `last` may not cut; 0: row after row
  std::int64_t tile_rows, tile_tokens;  // what many tokens are multiplied by at a time
  std::string_view arithmetic;          // what is multiplied, and the instruction that does it
};

// Per row of `columns`; in place where output == input.
template <class T>
struct NormTask {
  Norm kind;
  const T* input;
  T* output;
  const T* weight;  // may be null: it is 1 then
  const T* bias;    // may be null
  std::int64_t columns;
  float epsilon;
};

// Rotates the first 2 * pairs elements of each head: element i with element i + pairs.
template <class T>
struct RotaryTask {
  T* heads;  // [tokens][head_count][head_dim]
  std::int64_t head_count;
  std::int64_t head_dim;
  std::int64_t pairs;
  const float* waves;  // [tokens][2][pairs]: cosines, then sines
};

// Causal attention of some rows of one sequence over its paged keys and values. T: of queries and output; C: of the
// cache, where int8 has scales.
template <class T, class C>
struct AttentionTask {
  const T* query;            // [rows][heads][head_dim]
  T* output;                 // alike
  const C* keys;             // [blocks][kv_heads][head_dim][block_tokens]
  const C* values;           // [blocks][kv_heads][block_tokens][head_dim]
  const Fp16* key_scales;    // [blocks][kv_heads][head_dim / kv_scale_values][block_tokens]; null where C has none
  const Fp16* value_scales;  // alike
  const std::int32_t* blocks;
  std::int64_t position;  // of row 0
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t block_tokens;
  std::int64_t window;  // keys that a query sees, itself among them; 0: all
  float scale;
  const T* sinks = nullptr;  // [heads]; a score of each that adds to the softmax's sum alone; null: none
};

// Some channels of some rows of one sequence: values[t][c] = silu of the sum over w of weight[c][w] times the input
// width - 1 - w rows before, of which the first are in `kept`; it then has the last ones.
template <class T>
struct ConvolutionTask {
  T* values;
  std::int64_t stride;  // from a row to the next
  std::int64_t rows;
  const float* weight;  // [channels][width]
  float* kept;          // [channels][width - 1]
  std::int64_t width;
};

// Some rows of one value head of a delta net (Ops::gated_delta()), whose lengths are not yet 1. Strides: from a row to
// the next.
template <class T>
struct DeltaTask {
  const T *query, *key;
  std::int64_t key_stride;
  const T* value;
  std::int64_t value_stride;
  const float *decay, *beta;  // what the state is multiplied by, and the part that it learns
  std::int64_t rate_stride;
  float* state;  // [key_dim][value_dim]
  T* output;
  std::int64_t output_stride;
  std::int64_t rows, key_dim, value_dim;
};

// A block of more tokens than this does not fit the kernel's tiles.
constexpr std::int64_t max_block_tokens = 256;

template <class T>
struct CpuKernels {
  std::string_view instructions;
  const Product<T>* (*product)(DType weights);                                  // null: none
  void (*norm)(const NormTask<T>&, std::int64_t first, std::int64_t last);      // rows
  void (*rotate)(const RotaryTask<T>&, std::int64_t first, std::int64_t last);  // tokens
  // values[i] = activation(values[i]), times factors[i] where there are factors.
  void (*activate)(Activation, T* values, const T* factors, std::int64_t first, std::int64_t last);
  // sum[i] += terms[i] + bias[i % columns]
  void (*add)(T* sum, const T* terms, const T* bias, std::int64_t columns, std::int64_t first, std::int64_t last);
  // Rows [row_first, row_last), and the query heads of one KV head.
  void (*attend_fp32)(const AttentionTask<T, float>&, std::int64_t kv_head, std::int64_t row_first,
                      std::int64_t row_last);
  void (*attend_bf16)(const AttentionTask<T, Bf16>&, std::int64_t kv_head, std::int64_t row_first,
                      std::int64_t row_last);
  void (*attend_int8)(const AttentionTask<T, std::int8_t>&, std::int64_t kv_head, std::int64_t row_first,
                      std::int64_t row_last);
  void (*convolve)(const ConvolutionTask<T>&, std::int64_t first, std::int64_t last);  // channels
  void (*gated_delta)(const DeltaTask<T>&);
};

// The best that this processor runs, or those that the environment's MOTLEY_KERNELS names. Throws an input error where
// it names others.
std::string_view cpu_kernels_name();
template <class T>
const CpuKernels<T>& cpu_kernels();

// All that this processor runs, for tests; the portable ones first.
template <class T>
std::vector<const CpuKernels<T>*> all_cpu_kernels();

// All that were compiled, whether this processor runs them or not: `product` may be asked, nothing may be run.
template <class T>
std::vector<const CpuKernels<T>*> compiled_cpu_kernels();

}  // namespace motley
