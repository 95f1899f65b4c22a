#include "motley/engine/weights/block_weights.hpp"

#include <fmt/format.h>

#include <utility>

namespace motley {

WeightMatrix matrix_of(const std::map<std::string, WeightMatrix>& tensors, const std::string& role) {
  const auto found = tensors.find(role);
  return found == tensors.end() ? WeightMatrix() : found->second;
}

BlockWeights block_of(const std::map<std::string, WeightMatrix>& tensors) {
  const auto norm = [&](const std::string& role) {
    return NormWeights{matrix_of(tensors, role + ".weight").values, matrix_of(tensors, role + ".bias").values};
  };
  const auto linear = [&](const std::string& role) {
    return LinearWeights{matrix_of(tensors, role + ".weight"), matrix_of(tensors, role + ".bias").values};
  };
  ExpertWeights experts;
  const auto expert = [&](std::size_t number, const char* product) {
    return linear(fmt::format("experts.{}.{}", number, product));
  };
  for (std::size_t i = 0; tensors.contains(fmt::format("experts.{}.down.weight", i)); ++i) {
    experts.gate.push_back(expert(i, "gate"));
    experts.up.push_back(expert(i, "up"));
    experts.down.push_back(expert(i, "down"));
  }
  return {.attention_norm = norm("attention_norm"),
          .q_norm = norm("q_norm"),
          .k_norm = norm("k_norm"),
          .ffn_norm = norm("ffn_norm"),
          .q = linear("q"),
          .k = linear("k"),
          .v = linear("v"),
          .o = linear("o"),
          .gate = linear("gate"),
          .up = linear("up"),
          .down = linear("down"),
          .router = matrix_of(tensors, "router.weight"),
          .experts = std::move(experts)};
}

}  // namespace motley
