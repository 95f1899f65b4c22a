#include "motley/engine/weights/block_weights.hpp"

#include <fmt/format.h>

#include <utility>

#include "motley/model/tensors.hpp"

namespace motley {
namespace {

// Of a map by role; undefined where there is none.
class TensorsByRole {
 public:
  explicit TensorsByRole(const std::map<std::string, WeightMatrix>& tensors) : tensors_(tensors) {}
  WeightMatrix matrix(const std::string& role) const {
    const auto found = tensors_.find(role);
    return found == tensors_.end() ? WeightMatrix() : found->second;
  }
  NormWeights norm(const std::string& role) const {
    return {matrix(role + ".weight").values, matrix(role + ".bias").values};
  }
  LinearWeights linear(const std::string& role) const {
    return {matrix(role + ".weight"), matrix(role + ".bias").values};
  }

 private:
  const std::map<std::string, WeightMatrix>& tensors_;
};

}  // namespace

BlockWeights block_of(const std::map<std::string, WeightMatrix>& tensors, int rank, std::int64_t first_expert) {
  const TensorsByRole of(tensors);
  ExpertWeights experts;
  experts.first = first_expert;
  const auto expert = [&](std::int64_t number, const char* product) {
    return of.linear(fmt::format("experts.{}.{}", number, product));
  };
  for (std::int64_t i = first_expert; tensors.contains(fmt::format("experts.{}.down.weight", i)); ++i) {
    experts.gate.push_back(expert(i, "gate"));
    experts.up.push_back(expert(i, "up"));
    experts.down.push_back(expert(i, "down"));
    if (rank > 0 && first_expert == 0) experts.down.back().bias = at::Tensor();
  }
  return {.attention_norm = of.norm("attention_norm"),
          .q_norm = of.norm("q_norm"),
          .k_norm = of.norm("k_norm"),
          .attention_output_norm = of.norm("attention_output_norm"),
          .ffn_norm = of.norm("ffn_norm"),
          .ffn_output_norm = of.norm("ffn_output_norm"),
          .sinks = of.matrix("sinks").values,
          .q = of.linear("q"),
          .k = of.linear("k"),
          .v = of.linear("v"),
          .o = of.linear("o"),
          .gate = of.linear("gate"),
          .up = of.linear("up"),
          .down = of.linear("down"),
          .router = of.linear("router"),
          .selection_bias = of.matrix(std::string(selection_bias_role)).values,
          .expert_factors = of.matrix(std::string(expert_factors_role)).values,
          .experts = std::move(experts),
          .shared_gate = of.linear("shared.gate"),
          .shared_up = of.linear("shared.up"),
          .shared_down = of.linear("shared.down"),
          .shared_share = of.linear("shared.share"),
          .router_norm = {of.matrix("router.norm").values, {}},
          .routed_norm = of.norm("routed_norm"),
          .routed_output_norm = of.norm("routed_output_norm"),
          .shared_output_norm = of.norm("shared_output_norm"),
          .layer_factor = of.matrix(std::string(layer_factor_role)).values,
          .delta = {.q = of.linear("delta.q"),
                    .k = of.linear("delta.k"),
                    .v = of.linear("delta.v"),
                    .z = of.linear("delta.z"),
                    .beta = of.linear("delta.beta"),
                    .alpha = of.linear("delta.alpha"),
                    .out = of.linear("delta.out"),
                    .convolve_q = of.matrix("delta.convolve_q.weight").values,
                    .convolve_k = of.matrix("delta.convolve_k.weight").values,
                    .convolve_v = of.matrix("delta.convolve_v.weight").values,
                    .decay = of.matrix(std::string(delta_decay_role)).values,
                    .step = of.matrix(std::string(delta_step_role)).values,
                    .norm = of.norm("delta.norm")}};
}

EndWeights ends_of(const std::map<std::string, WeightMatrix>& tensors) {
  const TensorsByRole of(tensors);
  return {.embedding = of.matrix("embedding.weight"),
          .position = of.matrix("position.weight"),
          .projection_in = of.matrix("projection_in.weight"),
          .final_norm = of.norm("final_norm"),
          .projection_out = of.matrix("projection_out.weight"),
          .head = of.matrix("head.weight")};
}

}  // namespace motley
