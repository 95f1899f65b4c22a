// Quantities with units: reading them from text as people write them, and writing them back.
//
// Decimal prefixes are decimal (GB = 1e9 B), binary ones binary (GiB = 2^30 B); bit/s are bits. Inside the program
// every quantity is a double (or an integer for bytes and tokens) in the SI base unit that its name carries: `_s`,
// `_bytes`,
// `_bytes_per_s`, `_flop_per_s`, `_usd_per_hour`.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace motley {

enum class Dimension { bytes, bytes_per_s, seconds, flop_per_s, usd_per_hour, seconds_per_byte, per_s };

// "24 GiB" -> 25769803776. Throws an input error that names the accepted units.
double parse_quantity(std::string_view text, Dimension dimension);

// Text that parse_quantity() reads back to exactly the same value: "24 GiB", "10 Gbit/s" comes back as "1.25 GB/s".
std::string format_quantity(double value, Dimension dimension);

// The accepted units, for messages and docs: "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB".
std::string accepted_units(Dimension dimension);

// An example, for hints: "24 GiB".
std::string example_quantity(Dimension dimension);

// For people, rounded: "23.4 GiB", "1.25 GB/s", "3.2 ms", "68.98 B" parameters.
std::string human_bytes(double bytes);
std::string human_rate(double bytes_per_s);
std::string human_seconds(double seconds);
std::string human_count(double count);

// "1 machine", "2 machines".
std::string counted(std::size_t count, std::string_view noun);

}  // namespace motley
