// The constructor of the cost form `hexgen`, behind make_form().
#pragma once

#include <memory>

#include "motley/cost/form/form.hpp"

namespace motley {

std::unique_ptr<ServeForm> make_hexgen_form(const CostOptions& options, const Cluster& cluster,
                                            const Architecture& arch, const ServePoint& point);

}  // namespace motley
