// Patterns of tensors' names: N stands for a layer's number, E for an expert's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace motley {

inline constexpr char layer_mark = 'N', expert_mark = 'E';  // what stands for a number in a pattern

// A pattern with its layer in the place of N, or its expert in that of E.
std::string with_layer(std::string_view pattern, std::string_view layer);
std::string with_expert(std::string_view pattern, std::int64_t expert);

// The layer of a whole name that is of this pattern, with digits for its marks: empty where the pattern has no layer.
// Nothing: it is not of this pattern.
std::optional<std::string> layer_in(std::string_view pattern, std::string_view name);

}  // namespace motley
