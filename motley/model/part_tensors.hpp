// Which tensors a part of a model holds: the one list of all that load, train, count, send or write them.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/model/tensors.hpp"

namespace motley {

struct ModelPart {
  LayerRange layers;
  bool embedding = false;
  bool head = false;
};
ModelPart whole_model(const Architecture& arch);
// These layers, and the ends of the model that they reach.
ModelPart with_ends(const Architecture& arch, const LayerRange& layers);
// Its ends without its layers.
ModelPart ends_of(const ModelPart& part);

// A block or an end of the model.
struct ModelUnit {
  std::int64_t layer = 0;  // -1: the embedding; arch.layers: the head
  std::vector<TensorSpec> tensors;
};
// Embedding, blocks and head, in this order, each expert's tensors by themselves. A tied head has its table even where
// the embedding is in the part.
std::vector<ModelUnit> part_units(const Architecture& arch, const ModelPart& part);

// The tensors of those units, in their order, each once: of embedding and tied head the embedding's table.
std::vector<TensorSpec> part_tensors(const Architecture& arch, const ModelPart& part);
// Those of the whole model as the family's safetensors files hold them: some hold several of the model's.
std::vector<TensorSpec> stored_tensors(const Architecture& arch);

}  // namespace motley
