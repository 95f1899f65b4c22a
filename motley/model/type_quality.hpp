// What quantised weights change: published divergences of a whole model in one type (data/weight_types.json).
#pragma once

#include <optional>
#include <vector>

#include "motley/model/model.hpp"

namespace motley {

// Mean Kullback-Leibler divergence of the next token to the unquantised model, in nats, where every layer has this
// type. 0 for types that are not quantised; none where it was not measured.
std::optional<double> weight_kl(DType type);

// Types a layer of the model may have, from the best quality on: the model's own, and the quantised ones whose blocks
// fit every row of its matrices. One with at least the bits and the divergence of another is left out.
std::vector<DType> weight_type_choices(const Architecture& arch);

}  // namespace motley
