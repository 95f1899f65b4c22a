#include "motley/cost/train/train_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/cost/published/dtfm.hpp"
#include "motley/cost/published/flashflex.hpp"
#include "motley/cost/train/train_price.hpp"

namespace motley {
namespace {

struct TrainFormEntry {
  std::string name;
  std::vector<std::string> settings;  // numbers, at least 0
  TrainCost (*price)(const TrainPlan&, const CostOptions&);
};

const std::vector<TrainFormEntry>& train_form_entries() {
  static const std::vector<TrainFormEntry> table = {
      {"motley",
       {"motley.layer_overhead_s", "motley.boundary_overhead_s", "motley.blocking_hops", "motley.exposed_share"},
       price_motley_train},
      {"dtfm", {"dtfm.gradient_bytes", "dtfm.activation_bytes"}, price_dtfm},
      {"flashflex", {"flashflex.recompute", "flashflex.decimal", "flashflex.zero3"}, price_flashflex},
  };
  return table;
}

const TrainFormEntry& train_form_entry(const std::string& form) {
  for (const auto& entry : train_form_entries())
    if (entry.name == form) return entry;
  throw input_error(fmt::format("--cost must be a form for training plans, found \"{}\"", form),
                    fmt::format("choose one of {}", fmt::join(train_forms(), ", ")));
}

}  // namespace

const std::vector<std::string>& train_forms() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& entry : train_form_entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

void check_train_settings(const CostOptions& options) {
  const auto& known = train_form_entry(options.form).settings;
  for (const auto& [key, value] : options.settings) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw input_error(fmt::format("the cost form \"{}\" has no setting \"{}\"", options.form, key),
                        fmt::format("choose one of {}", fmt::join(known, ", ")));
    if (!std::isfinite(value) || value < 0)
      throw input_error(fmt::format("{} must be a number of at least 0, found {}", key, value),
                        fmt::format("give a number, as in --set {}=1", key));
    if (key == "motley.exposed_share" && value > 1)
      throw input_error(fmt::format("{} is a share of a transfer's time and must be at most 1, found {}", key, value),
                        "give a number from 0 to 1, as in --set motley.exposed_share=0.5");
  }
}

TrainCost price_train(const TrainPlan& plan, const CostOptions& options) {
  check_train_settings(options);
  return train_form_entry(options.form).price(plan, options);
}

}  // namespace motley
