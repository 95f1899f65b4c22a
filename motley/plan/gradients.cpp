#include "motley/plan/gradients.hpp"

#include <algorithm>
#include <map>

#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// What a device holds of a tensor along the dimension that is cut.
struct Held {
  Span span;
  GradientHolder holder;
};

// Norms of single heads see their own rank's alone.
bool of_own_heads(const TensorSpec& tensor) {
  return tensor.role.starts_with("q_norm.") || tensor.role.starts_with("k_norm.");
}

Span part_of(const Span& span, std::int64_t part, std::int64_t parts) {
  return {span.first + span.size() * part / parts, span.first + span.size() * (part + 1) / parts};
}

class Parts {
 public:
  explicit Parts(const TrainPlan& plan) : arch_(plan.model.arch) {
    for (const TrainReplica& replica : plan.replicas)
      for (const TrainStage& stage : replica.stages)
        for (const LayerStrategy& strategy : stage.strategies) {
          const bool shared = strategy.dp == 1 && strategy.tp > 1;
          const auto shards =
              make_shards(arch_, static_cast<int>(strategy.tp), shared ? stage.shares : std::vector<double>{});
          for (const TensorSpec& tensor : part_tensors(arch_, with_ends(arch_, strategy.layers)))
            hold(stage, strategy, shards, tensor);
        }
  }

  std::vector<GradientSlice> take() const {
    std::vector<GradientSlice> parts;
    for (const auto& [name, held] : held_) refine(held.tensor, held.by, parts);
    return parts;
  }

 private:
  struct HeldTensor {
    TensorSpec tensor;
    std::vector<Held> by;
  };

  void hold(const TrainStage& stage, const LayerStrategy& strategy, const std::vector<Shard>& shards,
            const TensorSpec& tensor) {
    const bool sharded = strategy.shard >= Sharding::zero2;
    const bool copies = tensor.cut == TensorCut::replicated && !of_own_heads(tensor);
    std::vector<Held>& holders = held_.try_emplace(tensor.name, HeldTensor{tensor, {}}).first->second.by;
    for (std::int64_t rank = 0; rank < strategy.tp * strategy.dp; ++rank) {
      const Slice slice = slice_of(arch_, tensor, shards[static_cast<std::size_t>(rank % strategy.tp)]);
      Held own{cuts_columns(tensor.cut) ? slice.columns : slice.rows,
               {stage.devices[static_cast<std::size_t>(rank)], copies ? 1 / static_cast<double>(strategy.tp) : 1}};
      if (sharded) own.span = part_of(own.span, rank / strategy.tp, strategy.dp);
      // A tied table at both ends of one stage is one tensor with one gradient.
      const bool held_already = std::any_of(holders.begin(), holders.end(), [&](const Held& other) {
        return other.holder.device == own.holder.device && other.span == own.span;
      });
      if (!held_already) holders.push_back(std::move(own));
    }
  }

  static void refine(const TensorSpec& tensor, const std::vector<Held>& holders, std::vector<GradientSlice>& parts) {
    std::vector<std::int64_t> cuts;
    for (const Held& held : holders) cuts.insert(cuts.end(), {held.span.first, held.span.end});
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    const std::int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
      const Span span{cuts[c], cuts[c + 1]};
      GradientSlice& part = parts.emplace_back(GradientSlice{
          tensor, cuts_columns(tensor.cut) ? Slice{{0, tensor.shape[0]}, span} : Slice{span, {0, columns}}, {}});
      for (const Held& held : holders)
        if (held.span.first <= span.first && span.end <= held.span.end) part.holders.push_back(held.holder);
    }
  }

  const Architecture& arch_;
  std::map<std::string, HeldTensor> held_;  // by name: a tied table has one
};

}  // namespace

std::vector<GradientSlice> gradient_slices(const TrainPlan& plan) { return Parts(plan).take(); }

}  // namespace motley
