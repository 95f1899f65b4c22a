// A cost on a page: the tree of its terms as bars that begin where the term before ended.
#pragma once

#include "motley/cost/form/term.hpp"
#include "motley/report/html.hpp"

namespace motley {

Html cost_content(const Term& root);

}  // namespace motley
