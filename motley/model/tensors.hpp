// The tensors of a checkpoint: names and shapes, as `transformers` saves them for each family.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "motley/model/architecture.hpp"

namespace motley {

// How a tensor is cut inside a tensor-parallel group.
enum class TensorCut {
  replicated,  // every rank holds it whole
  heads,       // rows (dimension 0) follow the query heads
  kv_heads,    // rows follow the key/value heads
  heads_in,    // columns (dimension 1) follow the query heads
  ffn,         // rows follow the FFN columns, those of each expert
  ffn_in,      // columns follow the FFN columns
  shared_ffn,  // rows follow the FFN columns of the shared expert
  shared_ffn_in,
  delta_keys,    // rows follow the key heads of a delta net
  delta_values,  // rows follow its value heads
  delta_values_in,
  vocabulary  // rows follow the vocabulary
};
constexpr bool cuts_columns(TensorCut cut) {
  return cut == TensorCut::heads_in || cut == TensorCut::ffn_in || cut == TensorCut::shared_ffn_in ||
         cut == TensorCut::delta_values_in;
}

inline constexpr std::string_view selection_bias_role = "router.selection_bias", delta_decay_role = "delta.decay",
                                  delta_step_role = "delta.step", expert_factors_role = "router.expert_factors",
                                  layer_factor_role = "layer_factor";

// One tensor of the checkpoint. Roles: docs/reference/model.md.
struct TensorSpec {
  std::string role;  // the engine's name: "q.weight", "attention_norm.weight", "embedding.weight", ...
  std::string name;  // Hugging Face's: "model.layers.3.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  TensorCut cut = TensorCut::replicated;
  std::size_t kind = 0;  // of its layer
  bool in_block = true;  // not of the tables around the blocks
  // Of an expert's tensor: how many experts have one each, of which this stands for all (role and name have E where the
  // number goes). 0: it stands for itself.
  std::int64_t experts = 0;
  std::string stacked_name = {};  // of one expert's: the name with E
  std::int64_t expert = -1;       // of one expert's: its number
  // Where types are kept by name: that of all experts' tensors, with E in the number's place, since a GGUF file has one
  // for them all.
  const std::string& type_name() const { return stacked_name.empty() ? name : stacked_name; }
  std::int64_t elements() const;  // of one expert
  std::int64_t copies() const { return experts > 0 ? experts : 1; }
  bool is_matrix() const { return shape.size() == 2; }
  // A router's logits decide: it stays in the type of the activations. So do a gate of one row and what convolves.
  bool may_be_quantised() const {
    return is_matrix() && role != "router.weight" && role != "shared.share.weight" && !is_convolution();
  }
  bool is_convolution() const { return role.starts_with("delta.convolve_"); }
  // In fp32 whatever the weights are: a choice or a state would be another.
  bool is_exact() const;
  // No gradient reaches it, and published numbers of parameters are without it.
  bool is_parameter() const { return role != selection_bias_role && role != layer_factor_role; }
};

// Of a block; alike ones of its experts stand once.
std::vector<TensorSpec> block_tensors(const Architecture& arch, std::int64_t layer);
// The same with those of each expert.
std::vector<TensorSpec> with_each_expert(std::vector<TensorSpec> tensors);
// Elements of those that are parameters.
std::int64_t parameters_of(const std::vector<TensorSpec>& tensors);
// Token and learned position tables, projection in.
std::vector<TensorSpec> embedding_tensors(const Architecture& arch);
// Final norm, projection out, and last the LM head, which has the embedding's name where they are tied.
std::vector<TensorSpec> head_tensors(const Architecture& arch);

}  // namespace motley
