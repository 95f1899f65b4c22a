#include "motley/planner/serve/choose_types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "motley/model/type_quality.hpp"

namespace motley {
namespace {

constexpr double trial_effort = 0.25;  // of the search for each trial; the last one has all
constexpr int trials_in_time = 16;     // a trial may take this part of the time that is left
constexpr double better = 1 + 1e-6;

using PlanWith = std::function<ServeOutcome(const ServeOptions&)>;
struct Types {
  std::map<std::string, DType> weights;  // by device type
  DType kv = DType::bf16;
  auto operator<=>(const Types&) const = default;
};

struct Trial {
  std::optional<ServePlan> plan;
  double kl = 0;
};

class TypeSearch {
 public:
  TypeSearch(const Cluster& cluster, const Model& model, const ServeOptions& options, const PlanWith& plan)
      : options_(options),
        plan_(plan),
        end_(Clock::now() + duration_of(std::clamp(options.deadline_s, 0.0, 1e6))),
        choices_(weight_type_choices(model.arch)),
        kv_choices_(options.kv_type ? std::vector{*options.kv_type} : kv_type_choices(model.arch)) {
    for (const Device& device : cluster.devices)
      if (std::ranges::find(options.excluded, device.name) == options.excluded.end())
        device_types_.insert(cluster.types[static_cast<std::size_t>(device.type)].name);
  }

  ServeOutcome run() {
    Types best;
    for (const DType type : choices_) {
      best = uniform(type);
      if (tried(best).plan) break;
    }
    if (!tried(best).plan) return planned(best, 1, seconds_left());  // with what is missing, and where
    climb(best);
    if (tried(best).kl > *options_.most_kl)
      return {.plan = {},
              .reason = fmt::format("no choice of weight types that was tried keeps a mean divergence of {:g}: the "
                                    "least that fits is {:.2g} ({})",
                                    *options_.most_kl, tried(best).kl, types_text(best)),
              .hint = fmt::format("allow --max-kl {:.2g}, or add device memory", tried(best).kl),
              .front = {}};
    ServeOutcome outcome = planned(best, options_.effort, seconds_left());
    if (!outcome.plan || plan_kl(*outcome.plan) > *options_.most_kl || value(*outcome.plan) < value(*tried(best).plan))
      outcome.plan = tried(best).plan;
    outcome.plan->predicted.kl = plan_kl(*outcome.plan);
    return outcome;
  }

 private:
  double seconds_left() const { return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count()); }

  Types uniform(DType type) const {
    Types types{.weights = {}, .kv = kv_choices_.front()};
    for (const std::string& name : device_types_) types.weights[name] = type;
    return types;
  }

  std::string types_text(const Types& types) const {
    std::string text;
    for (const auto& [device_type, type] : types.weights)
      text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", name_of(type), device_type);
    return text;
  }

  ServeOutcome planned(const Types& types, double effort, double deadline_s) const {
    ServeOptions options = options_;
    options.most_kl.reset();
    options.weight_types = types.weights;
    options.kv_type = types.kv;
    options.effort = effort;
    options.deadline_s = deadline_s;
    return plan_(options);
  }

  const Trial& tried(const Types& types) {
    const auto found = trials_.find(types);
    if (found != trials_.end()) return found->second;
    Trial trial{planned(types, trial_effort * options_.effort, seconds_left() / trials_in_time).plan};
    if (trial.plan) trial.kl = plan_kl(*trial.plan);
    return trials_.emplace(types, std::move(trial)).first->second;
  }

  double value(const ServePlan& plan) const {
    if (options_.objective == Objective::latency) return 1 / plan.predicted.latency_s;
    return plan.predicted.requests_per_s * plan.predicted.slo_attainment.value_or(1);
  }

  // First the bound, then the objective.
  bool improves(const Trial& a, const Trial& than) const {
    if (!a.plan) return false;
    const double over = std::max(0.0, a.kl - *options_.most_kl), over_than = std::max(0.0, than.kl - *options_.most_kl);
    if (over != over_than) return over < over_than;
    return value(*a.plan) > better * value(*than.plan);
  }

  std::vector<Types> changes_of(const Types& types) const {
    std::vector<Types> changes;
    for (const std::string& device_type : device_types_)
      for (const DType type : choices_) changes.emplace_back(types).weights[device_type] = type;
    for (const DType type : kv_choices_) changes.emplace_back(types).kv = type;
    return changes;
  }

  // Changes the type of one device type at a time, or that of keys and values, to the best of all changes, while one
  // improves.
  void climb(Types& best) {
    for (bool improved = true; improved && seconds_left() > 0;) {
      improved = false;
      Types next = best;
      for (const Types& changed : changes_of(best)) {
        if (!improves(tried(changed), tried(next))) continue;
        next = changed;
        improved = true;
      }
      best = std::move(next);
    }
  }

  const ServeOptions& options_;
  const PlanWith& plan_;
  Instant end_;
  std::vector<DType> choices_, kv_choices_;
  std::set<std::string> device_types_;
  std::map<Types, Trial> trials_;
};

}  // namespace

double plan_kl(const ServePlan& plan) {
  double sum = 0;
  std::int64_t layers = 0;
  for (const Stage& stage : plan.stages) {
    sum += static_cast<double>(stage.layers.size()) *
           (weight_kl(stage.weight_type).value_or(0) + kv_kl(stage.kv_type).value_or(0));
    layers += stage.layers.size();
  }
  return layers > 0 ? sum / static_cast<double>(layers) : 0;
}

void check_types_may_be_chosen(const Model& model) {
  const DType own = model.arch.checkpoint_type;
  if (own == DType::file || is_quantised(own))
    throw input_error(
        fmt::format("--max-kl chooses types for weights that are not quantised yet, and {} has them in {}", model.name,
                    own == DType::file ? "the types of its file" : name_of(own)),
        "leave out --max-kl, or give the unquantised model");
}

ServeOutcome plan_with_chosen_types(const Cluster& cluster, const Model& model, const ServeOptions& options,
                                    const std::function<ServeOutcome(const ServeOptions&)>& plan) {
  return TypeSearch(cluster, model, options, plan).run();
}

}  // namespace motley
