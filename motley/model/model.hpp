// What is to be run: a Hugging Face config.json read into one description of a transformer, and the arithmetic about
// it.
//
// "One arithmetic": parameters, bytes, FLOPs and KV bytes come from here for planner, verifier and engine alike.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {

struct Model {
  std::string name;
  // config.json as it stands, with the eos ids of generation_config.json where that has any; or, of a GGUF file, the
  // config.json that says the same as its metadata.
  Value config;
  std::map<std::string, DType> tensor_types;  // arch.tensor_types, as plans carry it
  std::string source;    // where it came from: OWNER/NAME[:FILE.gguf] on the Hugging Face hub; else empty
  std::string revision;  // of the source
  std::string digest;    // of the files' headers (checkpoint/digest.hpp); empty where there are no weights
  std::optional<std::int64_t> context;  // the longest sequence, where it is not the model's own
  std::vector<std::string> unread;      // tensors of its files that are not used; plans do not carry them
  Architecture arch;
  bool operator==(const Model&) const = default;
};
// As other files carry a model: its name and config, from which the architecture is read.
Schema<Model> schema_of(Bound<Model>);

// Throws an input error naming the missing or contradictory key, or a family that is not supported.
Architecture read_architecture(const Value& config, std::string source);
// A folder, a config.json, a GGUF file, or a name from data/models. Where its weights are there, they say whether the
// head is the embedding.
Model read_model(const std::string& name_or_path);
// Sets the longest sequence; 0 leaves it as it is. Throws an input error where learned positions end before it.
void set_context(Model& model, std::int64_t tokens);
// Layers whose tensors have other types in the file are of kinds of their own.
void set_tensor_types(Architecture& arch, std::map<std::string, DType> types);

// ---- counts ----

// Layers of each kind in a range.
std::vector<std::int64_t> kind_counts(const Architecture& arch, const LayerRange& layers);
std::int64_t attention_layers(const Architecture& arch);  // those that keep keys and values
std::int64_t largest_head(const Architecture& arch);      // head_dim, of any kind of layer with attention
bool alike_heads(const Architecture& arch);               // in number and size, of all layers with attention
std::int64_t widest_window(const Architecture& arch);     // of the layers that have one; 0: none has
std::int64_t narrowest_ffn(const Architecture& arch);     // columns, of any kind of layer
// The first layer of each kind, which stands for all of them; of a kind that no layer is of, the first of all.
std::vector<std::int64_t> layer_of_kinds(const Architecture& arch);
// Over the layers of a range; `of_layer` is asked once for each kind that they are of.
template <class OfLayer>
auto sum_over_layers(const Architecture& arch, const LayerRange& layers, OfLayer of_layer) {
  using Sum = decltype(of_layer(std::int64_t{}));
  const std::vector<std::int64_t> counts = kind_counts(arch, layers), of_kinds = layer_of_kinds(arch);
  Sum sum{};
  for (std::size_t kind = 0; kind < counts.size(); ++kind)
    if (counts[kind] > 0) sum += static_cast<Sum>(counts[kind]) * of_layer(of_kinds[kind]);
  return sum;
}

std::int64_t block_parameters(const Architecture& arch, std::int64_t layer);
double mean_block_parameters(const Architecture& arch);
std::int64_t total_parameters(const Architecture& arch);   // a tied table counts once
std::int64_t active_parameters(const Architecture& arch);  // of one token: without the experts that it does not take

// FLOPs of one token for each position that it attends to, scores and weighted values: 4 heads head_dim; 0 of a layer
// with a delta net.
double attention_flops(const Architecture& arch, std::int64_t layer);
// FLOPs of one token through a block: 2 per element of every matrix that it passes, and those of attention to `context`
// positions, or to the layer's window where that is smaller. A delta net has those of its state in their place.
double block_flops(const Architecture& arch, std::int64_t layer, double context);
// Of one token: the state decays, is read twice and is added to.
double delta_flops(const DeltaNet& delta);
// The same of all blocks.
double blocks_flops(const Architecture& arch, double context);
// FLOPs of one token through LM head and projection out.
double head_flops(const Architecture& arch);
// Bytes of keys and values of one token in one block, over all KV heads; and in several. Delta nets have none.
std::int64_t kv_bytes_per_token(const Architecture& arch, std::int64_t layer, DType kv_type);
std::int64_t kv_bytes_per_token(const Architecture& arch, const LayerRange& layers, DType kv_type);

// ---- shards ----

struct Span {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - first; }
  bool operator==(const Span&) const = default;
};

// What one rank of a tensor-parallel group holds of every block.
struct Shard {
  std::vector<Span> heads;     // query heads, by kind of layer
  std::vector<Span> kv_heads;  // whole groups; replicated where the degree exceeds the KV heads; by kind of layer
  std::vector<Span> columns;   // of the FFN, or of every expert, by kind of layer
  std::vector<Span> shared;    // of the shared expert, by kind of layer; an empty span where it has none
  Span vocabulary;             // rows of embedding and head
  std::vector<Span> experts;   // of which it holds those columns, by kind of layer; an empty span where there are none
  std::vector<Span> delta;     // key heads of the delta net, with their value heads, by kind of layer; or empty spans
  bool operator==(const Shard&) const = default;
};
bool of_one_size(const Shard& a, const Shard& b);  // wherever they lie

// What to do about weights of type `file` for a model without such a file.
constexpr const char* types_of_a_file = "give the model as a GGUF file, or another --weight-type";

constexpr double share_tolerance = 1e-6;  // shares of a whole sum to 1 but for that

// Cuts a block for a group with these shares (any scale; empty: equal). KV heads go by largest remainder, at least one
// each; with more ranks than KV heads, a KV head is held by consecutive ranks that divide its query heads. Key heads of
// delta nets go by largest remainder, too, with their value heads; of tiled ones as many together as are whole blocks
// of the file's types. FFN columns and vocabulary follow the shares, cut at multiples of 8 where every rank gets that
// much, never empty; the FFN columns at whole blocks of the file's types, and of `weight_type`, where every rank gets
// one. Of experts each rank gets columns of every one; with `expert_shares`, that many whole ones, in rank order.
// Throws an input error where it cannot be done: more ranks than query heads, key heads of a delta net, FFN columns or
// rows of vocabulary; shares that are not positive; experts that are left over, or a rank without one.
std::vector<Shard> make_shards(const Architecture& arch, int degree, const std::vector<double>& shares = {},
                               DType weight_type = DType::file, const std::vector<std::int64_t>& expert_shares = {});

// Whole experts for the ranks of a group with these shares, in proportion to them, where columns would leave a rank
// with notably more than its share of the experts' bytes: blocks of their types are too wide. Empty where columns
// serve, or where there are too few experts for that.
std::vector<std::int64_t> choose_expert_shares(const Architecture& arch, int degree, const std::vector<double>& shares,
                                               DType weight_type);

// The part of a tensor that a rank holds: rows x columns of the whole.
struct Slice {
  Span rows;
  Span columns;  // of dimension 1; {0, 1} for vectors
  // The spans of which one stands for several, each so far behind the one before: of tiled heads.
  std::int64_t times = 1, row_step = 0, column_step = 0;
  std::int64_t elements() const { return times * rows.size() * columns.size(); }
  Slice at(std::int64_t time) const {  // one of them
    const auto moved = [&](const Span& span, std::int64_t step) {
      return Span{span.first + time * step, span.end + time * step};
    };
    return {moved(rows, row_step), moved(columns, column_step)};
  }
  std::int64_t held_rows() const { return row_step > 0 ? times * rows.size() : rows.size(); }
  std::int64_t held_columns() const { return column_step > 0 ? times * columns.size() : columns.size(); }
  bool operator==(const Slice&) const = default;
};
// Empty where the tensor is of an expert that other ranks hold.
Slice slice_of(const Architecture& arch, const TensorSpec& tensor, const Shard& shard);
// Of how many experts the rank holds such a slice where the tensor stands for all of them; otherwise 1.
std::int64_t held_copies(const TensorSpec& tensor, const Shard& shard);
// The tensors of a part of which the rank holds any.
std::vector<TensorSpec> held_tensors(const Architecture& arch, const ModelPart& part, const Shard& shard);

// ---- memory of one rank ----

// What a step may hold at once: sizes the engine's buffers.
struct StepLimits {
  std::int64_t max_tokens = 512;    // tokens of one micro-batch, prompt chunks and decodes together
  std::int64_t max_sequences = 32;  // sequences of one micro-batch
  std::int64_t block_tokens = 16;   // tokens of a KV block
  bool operator==(const StepLimits&) const = default;
};

struct RankMemory {
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  std::int64_t activations = 0;
};
// The type that a tensor is held in where a stage has weights of `weight_type`. Norms and biases have that of the
// activations. Matrices: int8 and int4 hold for those of the blocks alone; GGUF's types for all, tables included, with
// `fitting()` for rows that are not whole blocks; `file` takes the file's type. What would be bf16 there is held as
// fp32.
DType held_type(const Architecture& arch, const TensorSpec& tensor, DType weight_type);
// Columns of a matrix of this type as whole blocks: a block that a boundary runs through is held on both its sides.
Span whole_blocks(DType type, const Span& columns);
// Bytes of such a slice, row by row where it has blocks.
std::int64_t held_bytes(const Slice& slice, DType type);
// Every tensor rounded up to 64 bytes; a tied table counts once in a part with both embedding and head.
std::int64_t weight_bytes(const Architecture& arch, const ModelPart& part, const Shard& shard, DType weight_type);
// Of one block, as of all of its kind.
std::int64_t block_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, DType weight_type);
// The same of tensors that were listed: listing them takes longer.
std::int64_t block_bytes(const Architecture& arch, std::span<const TensorSpec> tensors, const Shard& shard,
                         DType weight_type);
std::int64_t largest_block_bytes(const Architecture& arch, const Shard& shard, DType weight_type);
// Of what a layer keeps of a sequence whatever its length: the state of its delta net, and the last inputs of the
// convolution. 0: it has none, and keeps keys and values.
std::int64_t state_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard);
// Throws an input error where a head is not whole blocks of the type that keys and values have.
void check_kv_type(const Architecture& arch, DType kv_type);
// Of one layer; `tokens` is rounded up to whole blocks.
std::int64_t kv_cache_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, DType kv_type,
                            std::int64_t tokens, std::int64_t block_tokens);

// The same of the layer that has most.
std::int64_t largest_kv_bytes(const Architecture& arch, const Shard& shard, DType kv_type, std::int64_t tokens,
                              std::int64_t block_tokens);

// One buffer of the engine, allocated once for the life of a worker.
struct Buffer {
  std::string name;
  std::optional<DType> type;  // none: 64-bit integers, of tokens and positions
  std::vector<std::int64_t> shape;
  std::int64_t elements() const;
  std::int64_t bytes() const;  // as the allocator rounds them: up to 64
  bool operator==(const Buffer&) const = default;
};
// The list that the engine allocates from. T = max_tokens, S = max_sequences, and of a rank's shard, the most of any
// kind of layer: Q = query heads x head_dim, K = KV heads x head_dim, F = FFN columns that a token passes at once (of
// all experts that it takes, or of the shared one); V = rows of vocabulary, E = the most experts, A = the most that a
// token takes.
//   every stage         tokens, positions [T] int64; hidden, normed, projected [T, hidden]; query, attention [T, Q];
//                       key, value [T, K]; up [T, F]; gate [T, F] where gated
//   with an output gate gated_query [T, 2 Q]
//   with delta nets     mixed [T, 2 keys + values], delta_gate, delta_output [T, values]: heads x their size;
//                       delta_rates [2, T, value heads], fp32
//   with experts        routed [T, E], fp32; chosen [T, A] int64; shares [T, A], fp32
//   with a shared gate  shared_share [T, 1], fp32
//   with norms of both  routed_output [T, hidden]
//   with whole q/k norm squares [T, 2], fp32
//   not the first       incoming [2 T, hidden]: rows of a step, and those of the next that come meanwhile
//   embedding projected embedded [T, embedding_dim] with the embedding, last_embedded [S, embedding_dim] with the head
//   with the head       last [S, hidden]; logits [S, V] fp32; all_logits [S, vocabulary] fp32 where vocabulary is cut
//                       (rank 0 alone fills it; all ranks count it, so that the ranks of a stage stay alike)
// Other activations are in the weights' type, in bf16 for int8 and int4 weights, in fp32 for GGUF's types.
std::vector<Buffer> activation_buffers(const Architecture& arch, const ModelPart& part, const Shard& shard,
                                       DType weight_type, const StepLimits& limits);
// The sum of those buffers.
std::int64_t activation_bytes(const Architecture& arch, const ModelPart& part, const Shard& shard, DType weight_type,
                              const StepLimits& limits);

}  // namespace motley
