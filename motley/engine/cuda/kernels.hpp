// What the plug-in library of CUDA kernels offers: tasks of plain pointers and numbers, so that the library and the
// program that opens it share no other code. All pointers are the device's, row-major and dense but where a stride is
// named. T: rows (tokens) of the step. Functions put their work on `stream` (a cudaStream_t), return before it is done,
// and return 0 or a cudaError_t.
#pragma once

#include <cstdint>

namespace motley::cuda {

// Raised with every change of this file: a library of another number is refused.
inline constexpr std::int32_t kernels_version = 10;

enum class Element : std::int32_t { fp32, bf16, int8 };
enum class NormKind : std::int32_t { rms, rms1p, layer };  // rms1p: times one more than the weights
enum class ActivationKind : std::int32_t { silu, gelu, gelu_tanh, relu, swiglu };
// Of swiglu: min(x, limit) sigmoid(slope x), and what it is multiplied by is clamp(f, -limit, limit) + 1.
struct ActivationRule {
  ActivationKind kind;
  float limit, slope;
};

// out [rows, columns] = norm(input) * weight + bias, in fp32 inside; in place where out is input. weight may be
// null, which counts as 1, and bias.
struct NormTask {
  NormKind kind;
  Element element;
  const void* input;
  void* out;
  const void* weight;
  const void* bias;
  std::int64_t rows, columns;
  float epsilon;
};

// Heads of queries [T, heads, head_dim] and keys [T, kv_heads, head_dim], in place: a norm of each head where its
// weight is not null, then rotary positions where pairs > 0 (element i turns with element i + pairs, by the angle
// float(position) * inverse_frequencies[i]; cosine and sine times amplitude; all in fp32).
struct HeadsTask {
  NormKind kind;  // not layer
  Element element;
  void* query;
  void* key;
  const void* query_norm;  // [head_dim], of `element`
  const void* key_norm;
  float epsilon;
  std::int64_t rows;
  std::int32_t heads, kv_heads, head_dim, pairs;
  const float* inverse_frequencies;
  float amplitude;
  const std::int64_t* positions;  // [T]
};

// values [count] = activation(values) * factors; factors may be null.
struct ActivateTask {
  ActivationRule rule;
  Element element;
  void* values;
  const void* factors;
  std::int64_t count;
};

// sum [rows, columns] += terms + bias (bias may be null): sum + (terms + bias), in fp32 inside.
struct AddTask {
  Element element;
  void* sum;
  const void* terms;
  const void* bias;
  std::int64_t rows, columns;
};

// out [T, columns] = rows `tokens - first` of a table of `table_rows` rows; zeros for a token outside. Both of
// `element`.
struct EmbeddingTask {
  Element element;
  void* out;
  const std::int64_t* tokens;  // [T]
  const void* table;
  std::int64_t rows, columns, first, table_rows;
};

// One layer's keys and values (motley/engine/ops/kv_cache.hpp has the layout). Of int8, each 32 of a token's head share
// a scale in fp16, as q8_0 has it: scale = max |x| / 127, element = x / scale with halves away from zero.
struct CacheView {
  Element element;
  void* keys;          // [blocks, kv_heads, head_dim, block_tokens]
  void* values;        // [blocks, kv_heads, block_tokens, head_dim]
  void* key_scales;    // int8: fp16 [blocks, kv_heads, head_dim / 32, block_tokens]
  void* value_scales;  // alike
  std::int32_t kv_heads, head_dim, block_tokens;
};

// Where the step's rows stand: row t is token positions[t] of sequence row_sequences[t], whose tokens [b *
// block_tokens, (b + 1) * block_tokens) are in block table[row_sequences[t]][b].
struct RowsView {
  const std::int64_t* positions;      // [T]
  const std::int32_t* row_sequences;  // [T]
  const std::int32_t* table;          // [sequences, table_width]
  std::int32_t table_width;
  std::int64_t rows;
};

// key and value [T, kv_heads, head_dim] of `element` into the cache.
struct WriteTask {
  Element element;
  const void* key;
  const void* value;
  CacheView cache;
  RowsView at;
};

// Each row of query [T, heads, head_dim] attends to its sequence's cached keys up to and with its own position, of
// `window` keys at most where window > 0: out, of the query's shape. A head's sink is a score that adds to the sum of
// its weights alone. Each row's keys are divided over `splits` (1 to 32) blocks of threads; with more than one,
// `partial` holds fp32 [T, heads, splits, head_dim + 2]. The number of splits changes speed, and results by rounding
// only.
struct AttendTask {
  Element element;
  const void* query;
  void* out;
  std::int32_t heads;
  CacheView cache;
  RowsView at;
  std::int32_t window;
  float scale;
  const void* sinks;  // [heads], of `element`; may be null
  std::int32_t splits;
  float* partial;
};

// Tokens [0, tokens) of one sequence, of which `blocks` are the cache's blocks, out of the cache: keys and values
// [tokens, kv_heads, head_dim] in bf16.
struct GatherTask {
  CacheView cache;
  const std::int32_t* blocks;
  std::int64_t tokens;
  void* keys;
  void* values;
};

// One draw per row of logits [rows, columns] fp32, as sampler.cpp chooses: tokens[r] is the largest logit's (the lowest
// of equals) where temperature 0; else weights exp((logit - largest) / temperature), those below min_p dropped, and the
// first token at which their running sum in the order of tokens exceeds uniform[r] * sum. NaN counts as impossible; -1
// where all are.
struct DrawTask {
  const float* logits;
  std::int64_t rows, columns;
  const float* temperatures;  // [rows]
  const float* min_p;         // [rows]
  const double* uniform;      // [rows]
  std::int32_t* tokens;       // [rows]
};

// A matrix of weights. Of quantised types the GGUF blocks of all rows in planes, one after the other, each [rows,
// blocks of a row * bytes]: of q8_0 values 32, scale 2; q4_0 quants 16, scale 2; q4_1 quants 16, scale and minimum 4;
// q5_0 quants 16, high bits 4, scale 2; q5_1 quants 16, high bits 4, scale and minimum 4; mxfp4 quants 16, exponent 1;
// iq4_nl quants 16, scale 2; q4_k quants 128, the 16 bytes before them; q5_k quants 128, high bits 32, the 16 bytes;
// q6_k low quants 128, high quants 64, scales 16, scale 2; iq4_xs quants 128, the 8 bytes before them.
enum class WeightKind : std::int32_t {
  fp32,
  bf16,
  fp16,  // meets inputs of fp32
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  mxfp4,
  iq4_nl,
  q4_k,
  q5_k,
  q6_k,
  iq4_xs
};
struct Matrix {
  WeightKind kind;
  const void* values;
  std::int64_t outputs;
  std::int64_t inputs;      // of the product
  std::int64_t skipped;     // quantised: columns of the first block before the first input
  std::int64_t row_blocks;  // quantised: blocks in a row
};

enum class Then : std::int32_t {
  store,  // out = product
  add,    // out += product
  gate,   // two matrices: out[0] = activation(product of matrix 0) * product of matrix 1
};

// out[i] [T, matrix i's outputs] from input [T, inputs] for up to three matrices of one kind and the same inputs.
struct ProductTask {
  Element element;      // of input and bias
  Element out_element;  // fp32 or `element`
  std::int32_t matrices;
  Matrix matrix[3];
  const void* bias[3];  // [outputs]; may be null
  void* out[3];
  std::int64_t out_stride[3];  // between rows
  const void* input;
  std::int64_t input_stride;
  std::int64_t rows;
  Then then;
  ActivationRule activation;
  void* scratch;  // quantised kinds: bytes of product_scratch_bytes()
};

// Each row of values [rows, columns] becomes its softmax, or of each value its sigmoid.
enum class ScoreKind : std::int32_t { softmax, sigmoid };
struct ScoreTask {
  ScoreKind kind;
  float* values;
  std::int64_t rows;
  std::int32_t columns;
};

// Of each row of scores [rows, experts] the `active` largest with what `selection_bias` [experts] adds, of equal ones
// those of the lower expert: ids and shares [rows, active] by ascending expert. Shares are made of the scores without
// the bias: their softmax, or they themselves; then divided by their sum and `epsilon` where that is not negative;
// times `factor`.
struct RouteTask {
  const float* scores;
  const float* selection_bias;  // may be null
  std::int64_t rows;
  std::int32_t experts, active;  // active: at most most_active
  std::int32_t softmax;          // 0 or 1
  float epsilon, factor;
  std::int64_t* ids;
  float* shares;
};
inline constexpr std::int32_t most_active = 32;

// A product with the matrices of `experts` experts from number `first` on. Each token takes `active`: ids and shares
// [tokens, active]; those that are not here count nothing. Of a gate input [tokens, inputs], and out[0] [tokens *
// active, outputs] is of each expert of each token. Else of one matrix, input [tokens * active, inputs], and out[0]
// [tokens, outputs] the sum of a token's products times its shares, in the order of its ids.
inline constexpr std::int32_t most_experts = 256;
struct ExpertsTask {
  ProductTask product;  // whose matrices are those of any expert, but for their values; its own biases are null
  const void* values[2][most_experts];  // of matrix i of each expert
  const void* biases[2][most_experts];  // alike; may be null
  std::int32_t first, experts, active;
  const std::int64_t* ids;
  const float* shares;
};

// A quantised matrix's values [count, inputs]: of all rows, or where `rows` is not null of rows `rows[i] - first`,
// zeros for one outside.
struct ExpandTask {
  Matrix matrix;
  Element out_element;  // fp32 or bf16
  void* out;
  std::int64_t count;
  const std::int64_t* rows;  // [count]
  std::int64_t first;
};

// packed [rows, bytes of a row]: each row of values [rows, columns], of `element`, in 8 bits, with the bytes that
// encode_int8_row() (motley/engine/ops/int8_rows.hpp) makes of it in fp32: the `packed_exceptions` of the largest
// magnitude apart, a scale for each `packed_block` of the others.
inline constexpr std::int32_t packed_exceptions = 8, packed_block = 64;
inline constexpr std::int64_t most_packed_columns = 1 << 16;
struct PackTask {
  Element element;  // fp32 or bf16
  const void* values;
  std::int64_t rows, columns;
  void* packed;
};

// The sum of `ranks` processes' terms [count], in place at each: they are added in the order of the ranks in fp32, and
// rounded once. Each process runs the same tasks in the same order, but for its pointers. A rank's segment is memory
// that all of them reach, of sum_segment_bytes(most_bytes): the flags of its blocks, then two slots for terms, by
// turns. Only counters and flags that all stood still at one number (as zeros do) may begin. Where `abort` is not 0 a
// task ends without its sum, and the segments are of no more use.
inline constexpr std::int32_t most_sum_ranks = 8, most_sum_blocks = 32;
inline constexpr std::int64_t sum_flags_bytes = std::int64_t{most_sum_blocks} * 64;
constexpr std::int64_t sum_segment_bytes(std::int64_t most_bytes) { return sum_flags_bytes + 2 * most_bytes; }
struct SumTask {
  Element element;  // fp32 or bf16
  void* terms;
  std::int64_t count;
  std::int64_t most_bytes;  // of terms; a multiple of 16
  std::int32_t rank, ranks;
  std::int32_t blocks;    // of threads, at most: as many as all devices have room for at once, and no more than
                          // most_sum_blocks
  std::int32_t in_parts;  // 1: each rank adds up a part, and brings the others' from them; 0: each adds up all
  void* segments[most_sum_ranks];
  std::uint32_t* counters;     // [most_sum_blocks][2], of this device
  const std::uint32_t* abort;  // in pinned memory of the host
};

// By which another process of the machine opens memory of a device.
struct PeerHandle {
  unsigned char bytes[64];
};

struct Kernels {
  std::int32_t version;
  // That `product` takes, of fp32 and bf16, and of quantised kinds; and tokens that `experts` takes of quantised kinds,
  // of others as many as `product`. More rows are another library's business.
  std::int32_t most_rows, most_quantised_rows, most_quantised_tokens;
  // Of a sum, that have room on the device at once.
  std::int32_t sum_blocks;
  int (*norm)(const NormTask&, void* stream);
  int (*heads)(const HeadsTask&, void* stream);
  int (*activate)(const ActivateTask&, void* stream);
  int (*add)(const AddTask&, void* stream);
  int (*embedding)(const EmbeddingTask&, void* stream);
  int (*write)(const WriteTask&, void* stream);
  int (*attend)(const AttendTask&, void* stream);
  int (*gather)(const GatherTask&, void* stream);
  int (*draw)(const DrawTask&, void* stream);
  int (*product)(const ProductTask&, void* stream);
  std::int64_t (*product_scratch_bytes)(std::int64_t rows, std::int64_t inputs);
  int (*score)(const ScoreTask&, void* stream);
  int (*route)(const RouteTask&, void* stream);
  int (*experts)(const ExpertsTask&, void* stream);
  int (*expand)(const ExpandTask&, void* stream);
  int (*pack_int8)(const PackTask&, void* stream);
  int (*sum)(const SumTask&, void* stream);
  // Of the thread's current device, now.
  int (*memory)(std::int64_t* free_bytes, std::int64_t* total_bytes);
  // Memory of the thread's current device for other processes, which open it on theirs. It ends with peer_free(), when
  // all of them have closed it.
  int (*peer_allocate)(std::int64_t bytes, void** memory, PeerHandle* handle);
  void (*peer_free)(void* memory);
  int (*peer_open)(const PeerHandle& handle, void** memory);
  void (*peer_close)(void* memory);
  int (*peer_copy)(void* to, const void* from, std::int64_t bytes, void* stream);  // between any two devices
  // Memory of the host that devices read by themselves from then on, and where the thread's current one finds it.
  int (*pin)(void* memory, std::int64_t bytes);
  int (*pinned_address)(void* memory, void** address);
  void (*unpin)(void* memory);
  // A recorded run of what is put on `stream` between begin and end; replays cost one launch.
  int (*graph_begin)(void* stream);
  int (*graph_end)(void* stream, void** graph);
  int (*graph_launch)(void* graph, void* stream);
  void (*graph_free)(void* graph);
  const char* (*error_text)(int error);
};

// The one symbol of the library.
inline constexpr const char* kernels_symbol = "motley_cuda_kernels";
using KernelsFunction = const Kernels*();

}  // namespace motley::cuda
