// What is odd about a model that can be read.
#pragma once

#include <string>
#include <vector>

#include "motley/model/model.hpp"

namespace motley {

// Tensors that nothing reads: a model that answers otherwise than its maker meant.
std::vector<std::string> model_warnings(const Model& model);

}  // namespace motley
