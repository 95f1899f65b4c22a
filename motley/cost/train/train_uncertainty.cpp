// How far the figures of a training plan may be off: train_cost.hpp, uncertainties() and iteration_range().
#include "motley/cost/train/train_cost.hpp"

namespace motley {

std::vector<TypeUncertainty> uncertainties(const TrainPlan& plan, const CostOptions& options) {
  if (options.form != "motley") return {};
  // Both shares count: weights and the update are read at those of serving.
  return uncertainties_of(
      plan, [&](const TrainPlan& changed) { return price_train(changed, options).tokens_per_s; },
      [](const DeviceType& type) { return std::max(type.efficiency.basis, type.training.basis); });
}

std::optional<FigureRange> iteration_range(const TrainPlan& plan, const CostOptions& options) {
  if (options.form != "motley" || std::ranges::none_of(plan.cluster.types, is_uncertain)) return std::nullopt;
  const auto priced = [&](RangeEnd end) {
    TrainPlan changed = plan;
    changed.cluster = at_end(plan.cluster, end);
    return price_train(changed, options).iteration_s;
  };
  const FigureRange range{priced(RangeEnd::fast), priced(RangeEnd::slow)};
  return range.low == range.high ? std::nullopt : std::optional(range);
}

}  // namespace motley
