#include "motley/model/part_tensors.hpp"

#include <set>
#include <string>
#include <utility>

#include "motley/model/families/families.hpp"

namespace motley {

ModelPart whole_model(const Architecture& arch) { return with_ends(arch, {0, arch.layers}); }

ModelPart with_ends(const Architecture& arch, const LayerRange& layers) {
  return {.layers = layers, .embedding = layers.first == 0, .head = layers.end == arch.layers};
}

ModelPart ends_of(const ModelPart& part) { return {.layers = {}, .embedding = part.embedding, .head = part.head}; }

std::vector<ModelUnit> part_units(const Architecture& arch, const ModelPart& part) {
  std::vector<ModelUnit> units;
  if (part.embedding) units.push_back({-1, embedding_tensors(arch)});
  for (std::int64_t layer = part.layers.first; layer < part.layers.end; ++layer)
    units.push_back({layer, with_each_expert(block_tensors(arch, layer))});
  if (part.head) units.push_back({arch.layers, head_tensors(arch)});
  return units;
}

std::vector<TensorSpec> part_tensors(const Architecture& arch, const ModelPart& part) {
  std::vector<TensorSpec> tensors;
  for (ModelUnit& unit : part_units(arch, part))
    for (TensorSpec& tensor : unit.tensors) tensors.push_back(std::move(tensor));
  if (arch.tied_embeddings && part.embedding && part.head) tensors.pop_back();  // head_tensors() ends with the table
  return tensors;
}

std::vector<TensorSpec> stored_tensors(const Architecture& arch) {
  std::vector<TensorSpec> stored;
  std::set<std::string> packed;
  for (TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
    auto place = packed_place(family_of(arch).packed, tensor.name, tensor.shape, arch.kinds[tensor.kind].experts.count,
                              key_head_rows(arch));
    if (place) {
      if (!packed.insert(place->name).second) continue;
      tensor.name = std::move(place->name);
      tensor.shape = std::move(place->shape);
    }
    stored.push_back(std::move(tensor));
  }
  return stored;
}

}  // namespace motley
