// What quantised weights, keys and values change: divergences that were measured of a whole model in one type
// (data/type_quality.json).
#pragma once

#include <optional>
#include <vector>

#include "motley/model/model.hpp"

namespace motley {

// Mean Kullback-Leibler divergence of the next token to the unquantised model, in nats, where every layer has this
// type. 0 for types that are not quantised; none where it was not measured.
std::optional<double> weight_kl(DType type);
// The same where keys and values have this type, and weights are not quantised. What both change is taken to add up.
std::optional<double> kv_kl(DType type);

// Types a layer of the model may have, from the best quality on: the model's own, and the quantised ones whose blocks
// fit every row of its matrices. One with at least the bits and the divergence of another is left out.
std::vector<DType> weight_type_choices(const Architecture& arch);
// Types that its keys and values may have: the model's own, and quantised ones whose blocks fit its heads.
std::vector<DType> kv_type_choices(const Architecture& arch);

}  // namespace motley
