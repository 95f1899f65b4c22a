// For tests: CBC as a second opinion on a model.
#pragma once

#include <Cbc_C_Interface.h>

#include <algorithm>
#include <string>

#include "motley/solve/milp.hpp"

namespace motley {

inline MilpAnswer solve_cbc(const MilpModel& model, double relative_gap = 1e-9) {
  std::vector<CoinBigIndex> starts = {0};
  std::vector<int> indices;
  std::vector<double> values, lower, upper, cost, row_lower, row_upper;
  std::vector<std::vector<MilpEntry>> by_column(model.columns.size());  // `column` is the row here
  for (std::size_t i = 0; i < model.rows.size(); ++i) {
    row_lower.push_back(std::max(model.rows[i].lower, -1e30));
    row_upper.push_back(std::min(model.rows[i].upper, 1e30));
    for (const auto& entry : model.rows[i].entries)
      by_column[entry.column].push_back({static_cast<int>(i), entry.value});
  }
  for (std::size_t j = 0; j < model.columns.size(); ++j) {
    lower.push_back(model.columns[j].lower);
    upper.push_back(model.columns[j].upper);
    cost.push_back(model.columns[j].cost);
    for (const auto& entry : by_column[j]) {
      indices.push_back(entry.column);
      values.push_back(entry.value);
    }
    starts.push_back(static_cast<CoinBigIndex>(indices.size()));
  }
  Cbc_Model* cbc = Cbc_newModel();
  Cbc_setLogLevel(cbc, 0);
  Cbc_loadProblem(cbc, static_cast<int>(model.columns.size()), static_cast<int>(model.rows.size()), starts.data(),
                  indices.data(), values.data(), lower.data(), upper.data(), cost.data(), row_lower.data(),
                  row_upper.data());
  for (std::size_t j = 0; j < model.columns.size(); ++j)
    if (model.columns[j].integer) Cbc_setInteger(cbc, static_cast<int>(j));
  Cbc_setObjSense(cbc, model.sense == Sense::minimize ? 1 : -1);
  Cbc_setAllowableFractionGap(cbc, relative_gap);
  Cbc_setAllowableGap(cbc, 1e-9);
  Cbc_setParameter(cbc, "preprocess", "off");  // with it, 2.10.8 calls some feasible models infeasible
  Cbc_solve(cbc);
  MilpAnswer answer;
  if (Cbc_isProvenOptimal(cbc)) {
    answer.status = MilpStatus::optimal;
    const double* solution = Cbc_getColSolution(cbc);
    answer.values.assign(solution, solution + model.columns.size());
    answer.objective = milp_objective(model, answer.values);
  } else if (Cbc_isProvenInfeasible(cbc)) {
    answer.status = MilpStatus::infeasible;
  }
  Cbc_deleteModel(cbc);
  return answer;
}

}  // namespace motley
