// The constructors behind make_form(), one per source file.
#pragma once

#include <memory>

#include "motley/cost/form.hpp"

namespace motley {

std::unique_ptr<ServeForm> make_motley_form(const CostOptions& options, const Cluster& cluster,
                                            const Architecture& arch, const ServePoint& point);
std::unique_ptr<ServeForm> make_hexgen_form(const CostOptions& options, const Cluster& cluster,
                                            const Architecture& arch, const ServePoint& point);

}  // namespace motley
