// The tensors of a checkpoint: names and shapes, as `transformers` saves them for each family.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/model/architecture.hpp"

namespace motley {

// How a tensor is cut inside a tensor-parallel group.
enum class Cut {
  replicated,  // every rank holds it whole
  heads,       // rows (dimension 0) follow the query heads
  kv_heads,    // rows follow the key/value heads
  heads_in,    // columns (dimension 1) follow the query heads
  ffn,         // rows follow the FFN columns
  ffn_in,      // columns follow the FFN columns
  vocabulary   // rows follow the vocabulary
};

// One tensor of the checkpoint. Roles: docs/reference/model.md.
struct TensorSpec {
  std::string role;  // the engine's name: "q.weight", "attention_norm.weight", "embedding.weight", ...
  std::string name;  // Hugging Face's: "model.layers.3.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  Cut cut = Cut::replicated;
  bool in_block = true;  // not of the tables around the blocks
  std::int64_t elements() const;
};

std::vector<TensorSpec> block_tensors(const Architecture& arch, std::int64_t layer);
// Token and learned position tables, projection in.
std::vector<TensorSpec> embedding_tensors(const Architecture& arch);
// Final norm, projection out, and last the LM head, which has the embedding's name where they are tied.
std::vector<TensorSpec> head_tensors(const Architecture& arch);

}  // namespace motley
