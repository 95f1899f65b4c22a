// A transformer, described: one description for all families.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/dtype.hpp"
#include "motley/model/rotary.hpp"

namespace motley {

struct LayerRange {
  std::int64_t first = 0;
  std::int64_t end = 0;  // half open
  std::int64_t size() const { return end - first; }
  bool operator==(const LayerRange&) const = default;
};
std::string text(const LayerRange& range);  // "[0, 12)"

enum class Norm { rms, rms1p, layer };  // rms1p: RMS, times one more than its weights
struct Activation {
  // swiglu: of what meets the factors, min(x, limit) sigmoid(slope x); the factors f are clamp(f, -limit, limit) + 1.
  enum Kind { silu, gelu, gelu_tanh, relu, swiglu };
  Kind kind = silu;
  double limit = 0, slope = 0;  // of swiglu
  constexpr Activation(Kind of = silu, double most = 0, double steepness = 0)
      : kind(of), limit(most), slope(steepness) {}
  bool operator==(const Activation&) const = default;
};
enum class PositionKind { rotary, learned };  // learned: an embedding table, added to the token embedding

constexpr double max_context = 1 << 30;  // tokens: no model comes near

// What a router's logits become before experts are compared.
enum class RouterScore {
  softmax_of_chosen,  // they stay logits; the shares are the softmax of those of the chosen experts
  softmax,            // over all experts
  sigmoid
};

// How a router chooses experts, and what shares the outputs of the chosen ones have.
struct RouterRule {
  RouterScore score = RouterScore::softmax_of_chosen;
  bool bias = false;            // of the logits
  bool selection_bias = false;  // added to the scores for the choice alone: shares are made of the scores without it
  bool normalise = false;       // shares are divided by their sum and `epsilon`
  double epsilon = 0;
  double factor = 1;            // on the shares
  bool expert_factors = false;  // then by a learned number of each expert
  bool operator==(const RouterRule&) const = default;
};

// Several FFNs of which a router chooses some for each token: those with the largest scores. Their outputs are added,
// weighted by their shares.
struct Experts {
  std::int64_t count = 0;   // 0: one FFN for all tokens
  std::int64_t active = 0;  // of a token
  RouterRule router = {};
  std::int64_t shared_ffn = 0;  // columns of an FFN that all tokens pass, too, with a share of 1; 0: there is none
  bool shared_gate = false;     // whose share is the sigmoid of one more product instead
  // The experts and that FFN each have a norm of their own before them and one behind. The router has its own, too, and
  // its logits are multiplied by hidden^-1/2.
  bool own_norms = false;
  bool operator==(const Experts&) const = default;
};

// RMS norms of queries and keys before they are rotated.
enum class QkNorm {
  none,
  head,  // of each head, with one weight for all heads
  whole  // of all heads of a token together
};

// A gated delta net in attention's place: of a sequence it keeps a state of one size, whatever the sequence's length.
struct DeltaNet {
  std::int64_t key_heads = 0;               // 0: there is none
  std::int64_t value_heads = 0;             // as many for each key head
  std::int64_t key_dim = 0, value_dim = 0;  // of a head
  std::int64_t width = 0;                   // tokens that its convolution covers
  // Value head h goes with key head h mod `key_heads`, as in llama.cpp's files; else those of a key head are side by
  // side.
  bool tiled = false;
  std::int64_t values_of_key() const { return value_heads / key_heads; }
  explicit operator bool() const { return key_heads > 0; }
  bool operator==(const DeltaNet&) const = default;
};

// What may differ from layer to layer.
struct LayerKind {
  std::int64_t kv_heads = 0;  // as many query heads for each
  std::int64_t head_dim = 0;
  bool keys_are_values = false;  // values are what keys are before their norm and rotation: no product makes them
  std::int64_t window = 0;       // positions a token looks back on, itself included; 0: full attention
  std::size_t rotary = 0;        // which of the model's rules its heads are rotated by
  std::int64_t ffn = 0;          // columns of the FFN, or of each expert
  Experts experts;
  DeltaNet delta = {};
  std::map<std::string, DType> tensor_types = {};  // of its matrices in a GGUF file, by role; else empty
  // FFNs of `ffn` columns that a token passes: the only one, or its experts.
  std::int64_t active_ffns() const { return experts.count > 0 ? experts.active : 1; }
  bool operator==(const LayerKind&) const = default;
};

// One description for all families; the engine builds its layers from these fields alone.
struct Architecture {
  std::string family;  // model_type: llama, mixtral, qwen3_moe, ...
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;  // query heads, as many in each layer
  std::vector<LayerKind> kinds = {LayerKind()};
  std::vector<std::uint16_t> kind_of_layer;  // indices of `kinds`; empty: all layers are of the first
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  // largest position + 1, of rotary embeddings as they are stretched
  Norm norm = Norm::rms;
  double norm_epsilon = 1e-5;
  bool norm_first = true;  // before attention and FFN (false: after, as in OPT-350m)
  bool final_norm = true;
  bool output_norms = false;  // of what attention and FFN make, before it is added (Gemma)
  QkNorm qk_norm = QkNorm::none;
  bool value_norm = false;     // RMS of each head's values, without weights
  bool layer_factors = false;  // each layer's output is multiplied by a learned number
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool output_gate = false;  // attention's output, times the sigmoid of as many rows behind each head's of `q`
  bool ffn_bias = false;
  bool sinks = false;      // a learned score of each query head, which takes attention's weight and has no value
  double score_scale = 0;  // of attention's scores; 0: head_dim^-1/2
  bool norm_bias = false;
  bool gated = true;  // FFN: down(act(gate) * up); otherwise down(act(up))
  Activation activation = Activation::silu;
  PositionKind position = PositionKind::rotary;
  std::vector<Rotary> rotaries = {Rotary()};
  std::int64_t position_offset = 0;  // OPT's learned table starts at 2
  std::int64_t position_rows = 0;    // rows of the learned table
  std::int64_t embedding_dim = 0;    // of a token embedding that is projected to `hidden` (OPT-350m); 0: none is
  double embedding_factor = 1;       // of what is looked up
  double logit_cap = 0;              // c: logits become c tanh(logits / c); 0: they stay
  bool tied_embeddings = false;
  DType checkpoint_type = DType::bf16;        // `file` where a GGUF file has more than one
  std::map<std::string, DType> tensor_types;  // of that file's matrices, by name; else empty
  std::vector<std::int64_t> eos_tokens;
  std::optional<std::int64_t> bos_token;
  std::optional<std::int64_t> pad_token;  // whose row of the embedding learns nothing from being looked up

  std::size_t kind_index(std::int64_t layer) const {
    return kind_of_layer.empty() ? 0 : kind_of_layer.at(static_cast<std::size_t>(layer));
  }
  const LayerKind& kind(std::int64_t layer) const { return kinds[kind_index(layer)]; }
  // The first kind whose heads are rotated by that of `rotaries`; where none is, the first of all.
  const LayerKind& kind_of_rotary(std::size_t rotary) const;
  bool has_experts() const;
  bool operator==(const Architecture&) const = default;
};

}  // namespace motley
