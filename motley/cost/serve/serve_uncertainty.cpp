// How far the figures of a serving plan may be off: serve_cost.hpp, uncertainties() and with_ranges().
#include "motley/cost/serve/serve_cost.hpp"

namespace motley {

std::vector<TypeUncertainty> uncertainties(const ServePlan& plan, const CostOptions& options) {
  if (options.form != "motley") return {};
  return uncertainties_of(
      plan, [&](const ServePlan& changed) { return price_serve(changed, options).tokens_per_s; },
      [](const DeviceType& type) { return type.efficiency.basis; });
}

ServePrediction with_ranges(const ServePlan& plan, const CostOptions& options) {
  ServePrediction predicted = plan.predicted;
  predicted.tokens_per_s_range = predicted.latency_s_range = std::nullopt;
  if (options.form != "motley" || std::ranges::none_of(plan.cluster.types, is_uncertain)) return predicted;
  const auto priced = [&](RangeEnd end) {
    ServePlan changed = plan;
    changed.cluster = at_end(plan.cluster, end);
    return price_serve(changed, options);
  };
  const ServeCost cost = price_serve(plan, options), slow = priced(RangeEnd::slow), fast = priced(RangeEnd::fast);
  if (slow.tokens_per_s == fast.tokens_per_s && slow.latency_s == fast.latency_s) return predicted;  // all measured
  // The prediction may be another's than the closed form's (of a flow, by simulation); its range is in proportion.
  const double rate = predicted.tokens_per_s / cost.tokens_per_s, time = predicted.latency_s / cost.latency_s;
  predicted.tokens_per_s_range = {rate * slow.tokens_per_s, rate * fast.tokens_per_s};
  predicted.latency_s_range = {time * fast.latency_s, time * slow.latency_s};
  return predicted;
}

}  // namespace motley
