// A copy within main memory that leaves the caches to others.
#pragma once

#include <cstddef>
#include <span>

namespace motley {

// As memcpy, but what is written passes the caches by where the processor can: memory then moves the bytes twice, not
// three times, since it need not be read before it is written. On an AMD EPYC (Zen 3) two threads copied a GiB in
// pieces of 4 MiB at 14 GB/s, and by memcpy at 7.5 to 9. `to` has room for `from`.
void stream_copy(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace motley
