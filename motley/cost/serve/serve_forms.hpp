// The forms that price serving plans, by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"

namespace motley {

// Throws an input error where the form is unknown or a setting is not the form's.
void check_cost(const CostOptions& options);

// Throws as check_cost() does. Cluster and architecture must outlive it.
std::unique_ptr<ServeForm> make_form(const CostOptions& options, const Cluster& cluster, const Architecture& arch,
                                     const ServePoint& point);

// The forms that price serving plans.
const std::vector<std::string>& serve_forms();

}  // namespace motley
