// How far the figures of a training plan may be off: train_cost.hpp, doubts() and iteration_range().
#include "motley/cost/train/train_cost.hpp"

namespace motley {

std::vector<TypeDoubt> doubts(const TrainPlan& plan, const CostOptions& options) {
  if (options.form != "motley") return {};
  // Both shares count: weights and the update are read at those of serving.
  return doubts_of(
      plan, [&](const TrainPlan& changed) { return price_train(changed, options).tokens_per_s; },
      [](const DeviceType& type) { return std::max(type.efficiency.basis, type.training.basis); });
}

std::optional<FigureRange> iteration_range(const TrainPlan& plan, const CostOptions& options) {
  if (options.form != "motley" || std::ranges::none_of(plan.cluster.types, is_doubtful)) return std::nullopt;
  const auto priced = [&](DoubtEnd end) {
    TrainPlan changed = plan;
    changed.cluster = at_end(plan.cluster, end);
    return price_train(changed, options).iteration_s;
  };
  const FigureRange range{priced(DoubtEnd::fast), priced(DoubtEnd::slow)};
  return range.low == range.high ? std::nullopt : std::optional(range);
}

}  // namespace motley
