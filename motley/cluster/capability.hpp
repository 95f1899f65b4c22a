// Which NVIDIA cards the engine can serve on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace motley {

// What LibTorch and the kernels are compiled for (docs/gpu.md).
inline constexpr double least_compute_capability = 7.5;

// By the catalogue; nothing for cards of other vendors, and for types that it does not know.
std::optional<double> compute_capability(std::string_view device_type);

// One sentence where the engine cannot serve on this type; empty otherwise.
std::string capability_warning(std::string_view device_type);

}  // namespace motley
