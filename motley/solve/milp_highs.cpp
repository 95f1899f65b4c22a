// HiGHS, by its C API.
#include "motley/solve/milp_solvers.hpp"

#ifdef MOTLEY_WITH_HIGHS

#include <interfaces/highs_c_api.h>

#include <algorithm>
#include <memory>

#include "motley/base/error.hpp"

namespace motley {
namespace {

struct Destroy {
  void operator()(void* highs) const { Highs_destroy(highs); }
};

// The model as HiGHS takes it: rows one after the other.
struct RowWise {
  std::vector<double> cost, lower, upper, row_lower, row_upper, values;
  std::vector<HighsInt> starts, columns, integrality;

  RowWise(const MilpModel& model, Integrality kept, const void* highs) {
    const double infinity = Highs_getInfinity(highs);
    for (const auto& column : model.columns) {
      cost.push_back(column.cost);
      lower.push_back(column.lower);
      upper.push_back(column.upper);
      integrality.push_back(column.integer && kept == Integrality::kept ? kHighsVarTypeInteger
                                                                        : kHighsVarTypeContinuous);
    }
    for (const auto& row : model.rows) {
      starts.push_back(static_cast<HighsInt>(values.size()));
      row_lower.push_back(std::max(row.lower, -infinity));
      row_upper.push_back(std::min(row.upper, infinity));
      for (const auto& entry : row.entries) {
        columns.push_back(entry.column);
        values.push_back(entry.value);
      }
    }
  }
};

void must(HighsInt status) { MOTLEY_CHECK(status != kHighsStatusError); }

void set_options(void* highs, const MilpOptions& options) {
  must(Highs_setBoolOptionValue(highs, "output_flag", 0));
  must(Highs_setIntOptionValue(highs, "threads", 1));  // the same answer on every machine
  must(Highs_setStringOptionValue(highs, "parallel", "off"));
  must(Highs_setDoubleOptionValue(highs, "time_limit", std::max(0.01, options.time_limit_s)));
  must(Highs_setDoubleOptionValue(highs, "mip_rel_gap", options.relative_gap));
  must(Highs_setDoubleOptionValue(highs, "mip_abs_gap", 1e-9));
  if (options.node_limit > 0)
    must(Highs_setIntOptionValue(highs, "mip_max_nodes", static_cast<HighsInt>(options.node_limit)));
}

MilpStatus status_of(HighsInt status, bool has_solution) {
  if (status == kHighsModelStatusOptimal || status == kHighsModelStatusModelEmpty) return MilpStatus::optimal;
  // Columns are bounded, so nothing is unbounded.
  if (status == kHighsModelStatusInfeasible || status == kHighsModelStatusUnboundedOrInfeasible)
    return MilpStatus::infeasible;
  return has_solution ? MilpStatus::feasible : MilpStatus::none;
}

}  // namespace

MilpAnswer solve_highs(const MilpModel& model, const MilpOptions& options) {
  const std::unique_ptr<void, Destroy> owner(Highs_create());
  void* highs = owner.get();
  set_options(highs, options);
  const bool relaxed = options.integrality == Integrality::relaxed;
  const RowWise rows(model, options.integrality, highs);
  const auto columns = static_cast<HighsInt>(model.columns.size());
  must(Highs_passMip(
      highs, columns, static_cast<HighsInt>(model.rows.size()), static_cast<HighsInt>(rows.values.size()),
      kHighsMatrixFormatRowwise, model.sense == Sense::minimize ? kHighsObjSenseMinimize : kHighsObjSenseMaximize, 0,
      rows.cost.data(), rows.lower.data(), rows.upper.data(), rows.row_lower.data(), rows.row_upper.data(),
      rows.starts.data(), rows.columns.data(), rows.values.data(), rows.integrality.data()));
  if (!options.start.empty()) must(Highs_setSolution(highs, options.start.data(), nullptr, nullptr, nullptr));
  Highs_run(highs);

  MilpAnswer answer;
  HighsInt primal = 0;
  Highs_getIntInfoValue(highs, "primal_solution_status", &primal);
  const bool has_solution = primal == kHighsSolutionStatusFeasible;
  answer.status = status_of(Highs_getModelStatus(highs), has_solution);
  if (has_solution) {
    answer.values.resize(model.columns.size());
    std::vector<double> reduced(model.columns.size()), activity(model.rows.size()), duals(model.rows.size());
    Highs_getSolution(highs, answer.values.data(), reduced.data(), activity.data(), duals.data());
    if (relaxed) {
      answer.row_duals = std::move(duals);
      answer.reduced_costs = std::move(reduced);
    }
  }
  const bool mixed =
      !relaxed && std::any_of(model.columns.begin(), model.columns.end(), [](const auto& c) { return c.integer; });
  Highs_getDoubleInfoValue(highs, mixed ? "mip_dual_bound" : "objective_function_value", &answer.bound);
  Highs_getInt64InfoValue(highs, "mip_node_count", &answer.nodes);
  // A relaxation that was stopped proves nothing.
  if (!mixed && answer.status != MilpStatus::optimal)
    answer.bound = (model.sense == Sense::minimize ? -1 : 1) * std::numeric_limits<double>::infinity();
  return answer;
}

}  // namespace motley

#endif
