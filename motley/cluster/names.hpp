// What the catalogue and cluster files have in common: how types are named and how rates are written.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "motley/base/binding.hpp"

namespace motley {

// Lower case without spaces, dashes and underscores: "RTX 4090" -> "rtx4090".
std::string plain_name(std::string_view name);

// In place of a type in a machine's `devices`: its slot is left out.
inline constexpr std::string_view empty_slot = "empty";

// The `flops` table: FLOP/s by data type.
FieldDoc flops_row(bool required);
std::map<std::string, double> read_flops(const Reader& reader);
Value write_flops(const std::map<std::string, double>& flop_per_s);

// The format of the catalogue, data/devices.json.
const SchemaDoc& catalogue_format();

}  // namespace motley
